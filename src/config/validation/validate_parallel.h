// Checks of keys that distribute a run over ranks: pipeline stages, and what data-parallel ranks shard.
#pragma once

#include <string>
#include <vector>

#include "config/experiment.h"
#include "config/problems.h"

namespace primus::config {

// Adds contradictions to `problems`, and questionable values to `warnings`. Only for the native engine; no
// effect with another framework.
void validate_parallel(const Experiment& experiment, Problems& problems, std::vector<std::string>& warnings);

}  // namespace primus::config
