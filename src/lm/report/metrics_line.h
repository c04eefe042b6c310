// Reads one line of metrics.jsonl or evaluations.jsonl (docs/formats/metrics.md).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "lm/events/line_file.h"

namespace primus {

// Calls number(key, value) for each number of a line, including NaN and infinities. Lists over the layers
// with experts become the keys "imbalance" and "dropped" (means over layers) and "imbalance_worst". Returns
// false if the line is invalid (not a JSON object, or without an iteration); number() may already have been
// called for some numbers.
bool read_metrics_line(std::string_view line,
                       const std::function<void(std::string_view key, double value)>& number,
                       std::string* data_set = nullptr);

}  // namespace primus
