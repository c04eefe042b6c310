// A model for inference. It has only weights in the compute type, without master weights or optimizer states.
// The weights are in the rank's persistent arena, and zero until they are loaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/runtime/parameters.h"
#include "engine/runtime/rank.h"
#include "engine/runtime/shared_parameters.h"
#include "lm/model/language_model.h"

namespace primus {

struct InferenceModel {
  engine::ParameterStore store;
  LanguageModel model;
  // `positions`: length in tokens of the longest sequence. `base`: the model whose weights this model shares,
  // except those of its adapters and of modules that are trained without adapters; null: it has all weights.
  // Errors: as engine::allocate_beside().
  InferenceModel(engine::Rank& rank, const ModelConfig& config, const FamilyRegistry& families, DType compute,
                 std::int64_t positions, const InferenceModel* base = nullptr)
      : model(config, families, store) {
    const engine::ParameterStore::Layout layout{.compute = compute, .train = false};
    if (base) {
      engine::allocate_beside(store, base->store, layout, rank.persistent());
    } else {
      store.allocate(layout, rank.persistent());
    }
    model.allocate_tables(rank, positions);
  }
};

using InferenceModels = std::vector<std::unique_ptr<InferenceModel>>;

// Creates models on `rank`. The second and all further models share the weights of the first one
// (InferenceModel). `configs`: at least one. `positions`: one length per model.
inline InferenceModels make_models(engine::Rank& rank, std::span<const ModelConfig> configs,
                                   const FamilyRegistry& families, DType compute,
                                   std::span<const std::int64_t> positions) {
  InferenceModels models;
  for (std::size_t i = 0; i < configs.size(); ++i) {
    const InferenceModel* const base = models.empty() ? nullptr : models.front().get();
    models.push_back(
        std::make_unique<InferenceModel>(rank, configs[i], families, compute, positions[i], base));
  }
  return models;
}

// Creates models on `rank`, whose memory nothing else may use, as make_models() does. First, calls `plan`
// with these models without memory. It returns the memory of the models and of all their later uses
// (engine::MemoryPlan), which is then reserved. `configs`: at least one. `positions`: one length per model
// (InferenceModel), because the rotary factors of some models depend on it (make_rope_table).
template <class Plan>
InferenceModels planned_models(engine::Rank& rank, std::span<const ModelConfig> configs,
                               const FamilyRegistry& families, DType compute,
                               std::span<const std::int64_t> positions, const Plan& plan) {
  const engine::MemoryPlan memory = plan(make_models(rank, configs, families, compute, positions));
  rank.reserve(memory);
  return make_models(rank, configs, families, compute, positions);
}

// Like planned_models(), but runs `use` on each of the models without memory, to measure the required memory.
// `use` must need as much memory as any later use of the models.
template <class Use>
InferenceModels measured_models(engine::Rank& rank, std::span<const ModelConfig> configs,
                                const FamilyRegistry& families, DType compute,
                                std::span<const std::int64_t> positions, const Use& use) {
  return planned_models(rank, configs, families, compute, positions, [&](const InferenceModels& models) {
    for (const std::unique_ptr<InferenceModel>& model : models) use(*model);
    return rank.high_water();
  });
}

// Like measured_models(), but for one model.
template <class Use>
std::unique_ptr<InferenceModel> measured_model(engine::Rank& rank, const ModelConfig& config,
                                               const FamilyRegistry& families, DType compute,
                                               std::int64_t positions, const Use& use) {
  return std::move(
      measured_models(rank, std::span(&config, 1), families, compute, std::span(&positions, 1), use).front());
}

}  // namespace primus
