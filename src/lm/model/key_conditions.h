// Experiment keys that only some kinds of layers read.
#pragma once

#include <string>
#include <vector>

#include "config/experiment.h"
#include "lm/model/model_config.h"

namespace primus {

// Appends one sentence to `warnings` for each key that the experiment sets explicitly and that no layer of
// `model` reads. `model` is made from this experiment.
void warn_of_unread_keys(const config::Experiment& experiment, const ModelConfig& model,
                         std::vector<std::string>& warnings);

}  // namespace primus
