// The LoRA adapters that an experiment adds to its model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "config/experiment.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus {

// Sets model.lora if the experiment enables `lora`. Throws Error(kInvalid) if the model does not have a
// module that should be adapted. `warnings` may be null.
void set_adapters(const config::Experiment& experiment, ModelConfig& model, const FamilyRegistry& families,
                  std::vector<std::string>* warnings);

// Returns the PEFT folder whose adapters the experiment trains further (lora.adapters); nullopt: none.
std::optional<Path> adapters_to_load(const config::Experiment& experiment);

// Reads adapter_config.json of a PEFT folder with adapters of `model`, which has none. Throws Error(kInvalid)
// if the folder is no PEFT folder, or if its adapters belong to another model.
LoraConfig read_adapters(const Path& folder, const ModelConfig& model, const FamilyRegistry& families);

// Returns a warning if adapter_config.json of the PEFT folder `adapters` names another base model than the
// folder `load` or a folder around it; otherwise "". Equal last parts of both paths count as one model,
// because folders move. Throws Error for a file that cannot be read.
std::string warn_of_another_base(const Path& adapters, const Path& load);

// Returns a note if `base`, the model that a written PEFT folder names, is a folder without config.json, such
// as a run, which other programs cannot open; otherwise "".
std::string note_on_base(const std::string& base);

// Returns the command-line overrides that change the adapter settings `present` to `wanted`, e.g. "lora.dim=4
// lora.alpha=16". If `present` has no adapters, settings with default values are omitted.
std::string adapter_overrides(const LoraConfig& wanted, const LoraConfig& present);

}  // namespace primus
