// Models given as the name of a preset ("llama3.1_8B"), a Hugging Face folder, a checkpoint, or a run's
// folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus::cli {

// The model of a preset, as an experiment with no other settings would build it. `vocab`: used if the preset
// leaves the vocabulary size to a tokenizer. Throws Error.
ModelConfig preset_model(const std::string& name, const FamilyRegistry& families,
                         std::optional<std::int64_t> vocab = {});

// Whether `text` can only be a preset: it has no '/' and no such folder exists.
bool names_a_preset(const std::string& text);
// For Argument::reads: returns the values that are folders.
std::vector<std::string> folders_among(const std::vector<std::string>& values);

}  // namespace primus::cli
