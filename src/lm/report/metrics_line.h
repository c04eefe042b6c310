// One line of metrics.jsonl or evaluations.jsonl as numbers (docs/formats/metrics.md).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/files/file.h"

namespace primus {

// Calls number(key, value) for each number of a line, NaN and infinities included. Lists over the layers with
// experts become the keys "imbalance" and "dropped" (means over layers) and "imbalance_worst". False when the
// line is none of ours: no JSON object, or without an iteration; some numbers may have been passed on then.
bool read_metrics_line(std::string_view line,
                       const std::function<void(std::string_view key, double value)>& number,
                       std::string* data_set = nullptr);

// The last whole line, read from the end, so that a long file costs nothing; empty where there is none.
// Throws FileError, or Error(kInvalid) for a line that no run writes (longer than 1 MiB).
std::string last_line(const Path& file, Env& env = Env::posix());

// Calls line(text) for each whole line, in bounded memory. Lines over 1 MiB are passed on empty.
void read_lines(const Path& file, const std::function<void(std::string_view)>& line, Env& env = Env::posix());

}  // namespace primus
