// Reads what the stages of a pipeline did in a recorded step
// (docs/formats/events.md#timelines-of-a-pipeline), as JSON for the page. Files may be damaged or hostile:
// lines and spans that are not of the expected form are left out. Thread-safe.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "base/files/file.h"

namespace primus::dashboard {

inline constexpr int kMaxStages = 128;         // further stages are not read
inline constexpr std::size_t kMaxSteps = 200;  // newest recorded steps that are offered

// {"steps": [100, 50], "step": 100, "stages": [{"stage": 0, "rank": 0, "microseconds": 900, "left_out": 0,
// "spans": [["F", 0, 0, 12, 340], ...]}, ...], "missing": 0}. `step`: the newest recorded step, unless
// `wanted` names another one. A span: kind, chunk, microbatch, begin and duration in microseconds. "missing":
// stages without a record of this step. Without records, "steps" is empty and "step" null.
nlohmann::ordered_json timelines_json(const Path& run, std::optional<std::int64_t> wanted);

}  // namespace primus::dashboard
