// The training frameworks that run experiments besides the native engine. Each is a file in this folder,
// which ends with its BackendEntry; the build makes the list. config/frameworks has its keys, and
// presets/backends/NAME its tables. Free functions without state.
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
  // As render_job().
  ExternalJob (*render)(const config::Experiment& experiment, const config::BackendFields& fields,
                        const Path& checkout, const JobShape& shape);
  // The step that a line of its log reports, or nothing: without colours, and only what the line says.
  std::optional<IterationRecord> (*iteration)(std::string_view line);
  // The evaluation that a line reports, or nothing. `last`: the step that was reported before, for lines that
  // say none.
  std::optional<EvaluationRecord> (*evaluation)(std::string_view line, std::int64_t last);
};

// Null where there is none of that name.
const BackendEntry* find_backend(std::string_view framework);
// Throws Error(kUnsupported), at `place` in the experiment, where there is none of that name.
const BackendEntry& backend_of(std::string_view framework, const std::string& place = {});

}  // namespace primus::backends
