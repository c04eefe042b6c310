// The adapters (LoRA) that an experiment adds to its model.
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

// Returns the overrides that turn the adapters `present` into `wanted`, e.g. "lora.dim=4 lora.alpha=16". If
// `present` has none, a setting that is not named has its default.
std::string adapter_overrides(const LoraConfig& wanted, const LoraConfig& present);

}  // namespace primus
