// Several adapters on one base model in memory. Adapters are a PEFT folder, or a run or checkpoint that
// trained adapters next to the weights of the base model.
//
// Errors: as find_model_folder(), and kInvalid for adapters of another base model.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/runtime/parameters.h"
#include "engine/runtime/rank.h"
#include "lm/generate/model_folder.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus {

// The name of the model without adapters.
inline constexpr std::string_view kBaseName = "base";

// The base model, or the base model with adapters, with a name by which users choose it.
struct AdaptedModel {
  std::string name;
  ModelFolder folder;
  ModelConfig config;
};

// Returns the folder of the base model with the adapters in `given`. Throws Error(kInvalid) if `base` has
// adapters itself, or if `given` is a model without adapters.
ModelFolder find_adapters(const Path& given, const ModelFolder& base, const FamilyRegistry& families);

// Returns a warning if the PEFT folder of `model` names another base model than `base`; otherwise "".
std::string warn_of_another_base(const AdaptedModel& model, const ModelFolder& base);

// Loads the weights of models whose stores share the weights of the first one (engine::allocate_beside). The
// first model is loaded completely. The other models load only their own parameters: adapters and modules
// trained without adapters. Throws Error(kInvalid) if a model's folder has other values of the shared
// weights, so that its adapters were trained next to other weights.
void load_shared_weights(std::span<const AdaptedModel> models,
                         std::span<engine::ParameterStore* const> stores, engine::Rank& rank);

}  // namespace primus
