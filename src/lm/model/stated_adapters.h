// The adapters (LoRA) that an experiment gives its model. Internal to lm/model.
#pragma once

#include <string>
#include <vector>

#include "config/experiment.h"
#include "lm/model/model_config.h"

namespace primus {

// Sets model.lora where the experiment enables `lora`. Throws Error(kInvalid) where the model has no such
// module to adapt. `warnings` may be null.
void set_adapters(const config::Experiment& experiment, ModelConfig& model,
                  std::vector<std::string>* warnings);

}  // namespace primus
