// Models that are given by the name of a preset ("llama3.1_8B"). For models in folders, see model_folder.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus {

// Returns the model that an experiment with this preset and no other settings describes. `vocab`: used if the
// preset leaves the vocabulary size to a tokenizer. Throws Error.
ModelConfig preset_model(const std::string& name, const FamilyRegistry& families,
                         std::optional<std::int64_t> vocab = {});

// Maps a model name of AMD Primus ("Llama3.1_8B", "mistral_8x7B", "Deepseek_V2_Lite") to the preset of this
// program. Other names are returned unchanged.
std::string preset_of(const std::string& name);

// Whether `text` can only be a preset: the text has no '/', and no folder has this name.
bool names_a_preset(const std::string& text);
// Returns the values that are folders.
std::vector<std::string> folders_among(const std::vector<std::string>& values);

}  // namespace primus
