// Models that a user names by a preset ("llama3.1_8B"). For models in folders, see model_folder.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus {

// Returns the model of an experiment that consists of this preset and no other settings. `vocab`: vocabulary
// size, used if the preset does not set one because the size depends on a tokenizer. Throws Error.
ModelConfig preset_model(const std::string& name, const FamilyRegistry& families,
                         std::optional<std::int64_t> vocab = {});

// Returns the Primus preset for a model name of AMD Primus ("Llama3.1_8B", "mistral_8x7B",
// "Deepseek_V2_Lite"). Other names are returned unchanged.
std::string preset_of(const std::string& name);

// Returns whether `text` can only be a preset, because it has no '/' and no folder has this name.
bool names_a_preset(const std::string& text);
// Returns the elements of `values` that are names of existing folders.
std::vector<std::string> folders_among(const std::vector<std::string>& values);

}  // namespace primus
