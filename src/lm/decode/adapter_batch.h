// Chooses the models, of a base model and its adapters, whose texts may be in one batch (BatchReader).
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lm/decode/reader_settings.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus {

// Models whose texts are in one batch, and the settings of their reader.
struct AdapterBatch {
  std::vector<std::size_t> models;  // ascending
  ReaderSettings settings;
};

// Returns why the texts of `model` cannot be in one batch with those of `base`; nullopt if they can. `model`
// has the base weights of `base`, and adapters next to them.
std::optional<std::string> needs_own_batch(const ModelConfig& base, const ModelConfig& model,
                                           const FamilyRegistry& families);

// Returns the numbers of the models whose texts can be in one batch. The first model is the base model. Empty
// if fewer than two models can.
std::vector<std::size_t> models_of_one_batch(std::span<const ModelConfig> models,
                                             const FamilyRegistry& families);

}  // namespace primus
