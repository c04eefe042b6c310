// A model that is not trained: weights in the type they are computed in and nothing beside them, in the
// rank's persistent arena. Weights are zero until they are loaded.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/parameters.h"
#include "engine/rank.h"
#include "lm/model/language_model.h"

namespace primus {

struct InferenceModel {
  engine::ParameterStore store;
  LanguageModel model;
  // `positions`: of the longest sequence.
  InferenceModel(engine::Rank& rank, const ModelConfig& config, const FamilyRegistry& families, DType compute,
                 std::int64_t positions)
      : model(config, families, store) {
    store.allocate({.compute = compute, .train = false}, rank.persistent());
    model.allocate_tables(rank, positions);
  }
};

// The model of a rank that has it for itself. `use` is what the rank will do with it at most: it is measured
// on a model without memory, and the rank takes what it needed.
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
