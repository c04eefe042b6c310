// Checks that involve more than one key.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/experiment.h"
#include "config/problems.h"

namespace primus::config {

// Checks a trainer configuration for the native engine, after each key was checked separately: divisibility
// of sizes, schedules, available training data. Adds an Error at the offending key for each problem. Adds a
// sentence to `warnings` for each legal but unusual setting.
void validate_native(const Experiment& experiment, Problems& problems, std::vector<std::string>& warnings);

}  // namespace primus::config
