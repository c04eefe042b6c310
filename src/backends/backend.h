// The training frameworks other than the native engine that can run experiments. Each framework has a file in
// this folder, which ends with the framework's BackendEntry. The build collects the entries in a list. A
// framework's keys are in config/frameworks, and its tables are in presets/backends/NAME. Free functions
// without state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "backends/job.h"
#include "lm/events/iteration.h"

namespace primus::backends {

struct BackendEntry {
  std::string_view name;  // the value of the key `framework`
  // Makes a job from an experiment, as render_job() describes.
  ExternalJob (*render)(const config::Experiment& experiment, const config::BackendFields& fields,
                        const Path& checkout, const JobShape& shape);
  // Returns the step that a log line without colours reports, or nullopt. Sets only values that the line
  // contains.
  std::optional<IterationRecord> (*iteration)(std::string_view line);
  // Returns the evaluation that a line reports, or nullopt. `last`: the last reported step, for lines without
  // a step.
  std::optional<EvaluationRecord> (*evaluation)(std::string_view line, std::int64_t last);
};

// Returns null if no backend has that name.
const BackendEntry* find_backend(std::string_view framework);
// Throws Error(kUnsupported), at `place` in the experiment, if no backend has that name.
const BackendEntry& backend_of(std::string_view framework, const std::string& place = {});

}  // namespace primus::backends
