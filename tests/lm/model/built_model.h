// A model's parameters in memory with random values, and their tensors in a checkpoint, for tests.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/runtime/parameters.h"
#include "engine/runtime/rank.h"
#include "lm/model/language_model.h"
#include "lm/model/weights.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus::test {

struct BuiltModel {
  explicit BuiltModel(const ModelConfig& config, std::uint64_t seed = 1) : rank(turbo::make_cpu_device(1)) {
    const auto build = [&](engine::ParameterStore& to) {
      const LanguageModel model(config, builtin_families(), to);
      to.allocate({.compute = DType::kF32, .train = false}, rank.persistent());
    };
    engine::ParameterStore measuring;
    build(measuring);
    rank.reserve(rank.high_water());
    build(store);
    store.initialize(rank.context(), seed);
    rank.compute().synchronize();
    reader = std::make_unique<DeviceReader>(rank);
  }
  std::vector<TensorSource> sources() const { return model_sources(store, *reader); }

  engine::Rank rank;
  engine::ParameterStore store;
  std::unique_ptr<DeviceReader> reader;
};

}  // namespace primus::test
