// The LoRA settings in the config.json of a folder in which Primus stored adapters next to the frozen
// weights.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "lm/model/lora_config.h"

namespace primus {

// The key of an object with the LoRA settings. The key occurs only in folders in which Primus stored adapters
// next to the frozen weights. The key is also the folder's model_type, and the object holds the model_type of
// the family. transformers therefore refuses such a folder instead of loading the frozen weights as the
// trained model.
inline constexpr const char* kLoraKey = "primus_lora";

// Returns the settings in the config.json `root`; no adapters if the key is absent. Throws ConfigKeyError.
// `where`: location for error messages.
LoraConfig read_stored_lora(const nlohmann::json& root, const std::string& where);
// Writes the settings. `family`: the model_type of the family.
void write_stored_lora(const LoraConfig& lora, std::string_view family, nlohmann::json& root);

}  // namespace primus
