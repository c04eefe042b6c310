// Checks of max_staleness, with which a run learns from answers of older weights.
#pragma once

#include <string>
#include <vector>

#include "config/experiment.h"
#include "config/problems.h"

namespace primus::config {

// Adds contradictions to `problems`, and questionable values to `warnings`. Only for the native engine.
void validate_staleness(const Experiment& experiment, Problems& problems, std::vector<std::string>& warnings);

}  // namespace primus::config
