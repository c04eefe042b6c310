// Keys that an experiment sets although they change nothing.
#pragma once

#include <string>
#include <vector>

#include "config/experiment.h"

namespace primus::config {

// Adds a sentence to `warnings` for each key of a native experiment that has an effect only with another key,
// if the experiment itself, not a preset, sets it to something other than its default.
// Keys that depend on a model that `load` names are left out.
void warn_of_keys_without_effect(const Experiment& experiment, std::vector<std::string>& warnings);

// Adds the sentences on those keys. `experiment` has the settings of the loaded model.
void warn_of_model_keys_without_effect(const Experiment& experiment, std::vector<std::string>& warnings);

}  // namespace primus::config
