// The adapters (LoRA) that an experiment adds to its model. Internal to lm/model.
#pragma once

#include <string>
#include <vector>

#include "config/experiment.h"
#include "lm/model/model_config.h"

namespace primus {

// Sets model.lora if the experiment enables `lora`. Throws Error(kInvalid) if the model lacks a module to
// adapt. `warnings` may be null.
void set_adapters(const config::Experiment& experiment, ModelConfig& model,
                  std::vector<std::string>* warnings);

}  // namespace primus
