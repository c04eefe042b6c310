// Keys of an experiment that only some kinds of layers read.
#pragma once

#include <string>
#include <vector>

#include "config/experiment.h"
#include "lm/model/model_config.h"

namespace primus {

// Appends a sentence to `warnings` for each key that the experiment itself sets and that no layer of `model`,
// which is made from it, reads.
void warn_of_unread_keys(const config::Experiment& experiment, const ModelConfig& model,
                         std::vector<std::string>& warnings);

}  // namespace primus
