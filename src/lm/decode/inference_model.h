// A model for inference. It has only weights in the compute type, without master weights or optimizer states.
// The weights are in the rank's persistent arena, and zero until they are loaded.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/runtime/parameters.h"
#include "engine/runtime/rank.h"
#include "lm/model/language_model.h"

namespace primus {

struct InferenceModel {
  engine::ParameterStore store;
  LanguageModel model;
  // `positions`: length in tokens of the longest sequence.
  InferenceModel(engine::Rank& rank, const ModelConfig& config, const FamilyRegistry& families, DType compute,
                 std::int64_t positions)
      : model(config, families, store) {
    store.allocate({.compute = compute, .train = false}, rank.persistent());
    model.allocate_tables(rank, positions);
  }
};

// Creates a model on `rank`, whose memory nothing else may use. First, runs `use` on a model without memory
// to measure the required memory, and reserves this memory. `use` must need as much memory as any later use
// of the model.
template <class Use>
std::unique_ptr<InferenceModel> measured_model(engine::Rank& rank, const ModelConfig& config,
                                               const FamilyRegistry& families, DType compute,
                                               std::int64_t positions, const Use& use) {
  const auto make = [&] {
    return std::make_unique<InferenceModel>(rank, config, families, compute, positions);
  };
  use(*make());
  rank.reserve(rank.high_water());
  return make();
}

}  // namespace primus
