// The records of a run: from rank 0's events (docs/formats/events.md), or from metrics.jsonl and
// evaluations.jsonl in folders whose runs began before there were events. Free functions without state.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/files/file.h"

namespace primus {

// Rank 0's events, where they reach back to the run's beginning; else empty.
std::optional<Path> events_of(const Path& run);
// The file that has the run's steps.
Path steps_file(const Path& run);

using RecordFn = std::function<void(std::string_view line)>;
// Calls step(line) and evaluation(line) for each of them, in order within their kind, with the object that is
// a line of metrics.jsonl or evaluations.jsonl; damaged(name, lines) for a file that has damaged lines.
// Throws FileError.
void read_records(const Path& run, const RecordFn& step, const RecordFn& evaluation,
                  const std::function<void(std::string_view name, std::int64_t lines)>& damaged = {});

// The settings of the last process that trained, as experiment.yaml has them; empty: there are none. Throws
// FileError, or Error(kInvalid) where the file is too large.
std::optional<std::string> recorded_experiment(const Path& run);

}  // namespace primus
