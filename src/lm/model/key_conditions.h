// Experiment keys that are read only by some kinds of layers.
#pragma once

#include <string>
#include <vector>

#include "config/experiment.h"
#include "lm/model/model_config.h"

namespace primus {

// Appends one sentence to `warnings` for each explicitly set key of `experiment` that no layer of `model`
// reads. `model` was made from the same experiment.
void warn_of_unread_keys(const config::Experiment& experiment, const ModelConfig& model,
                         std::vector<std::string>& warnings);

}  // namespace primus
