// Checks that involve more than one key.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/experiment.h"
#include "config/problems.h"

namespace primus::config {

// What the native engine needs of a trainer configuration whose single keys are right: sizes that divide,
// schedules that fit, data to train on. Adds an Error at the offending key for each problem, and a sentence
// to `warnings` for what is merely odd.
void validate_native(const Experiment& experiment, Problems& problems, std::vector<std::string>& warnings);

// Whether the experiment itself, not a preset, says something of a key that it would not be without.
bool is_said(const Experiment& experiment, std::string_view key);

}  // namespace primus::config
