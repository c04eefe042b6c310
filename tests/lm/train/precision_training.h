// Training steps with recipes of low precision (engine::PrecisionRecipe) for the blocks' linear layers.
#pragma once

#include <gtest/gtest.h>

#include "lm/train/rank_training.h"
#include "lm/train/tiny_model.h"

namespace primus::test {

inline constexpr engine::MeshShape kAlone{};

inline SessionSettings settings_with(const engine::PrecisionRecipe& recipe,
                                     const ModelConfig& model = tiny_llama()) {
  SessionSettings settings = tiny_settings(DType::kBF16, model);
  settings.step.precision = recipe;
  settings.evaluation = false;
  return settings;
}

inline turbo::Meter kernels_of(const SessionSettings& settings) {
  engine::Rank rank(turbo::make_cpu_device(1));
  return measure_session(rank, settings, builtin_families()).kernels;
}

// Trains on one rank.
inline Outcome train(const SessionSettings& settings, int steps = 3) {
  return train_on_ranks(settings, 1, kAlone, steps, 2);
}

// Expects that recomputation of all blocks and deferred weight gradients give the bits of the plain step.
inline void expect_no_bit_changed_by_the_order_of_work(const SessionSettings& settings) {
  const Outcome expected = train(settings);
  SessionSettings recomputed = settings;
  recomputed.step.recompute.full_layers = 4;
  EXPECT_TRUE(train(recomputed) == expected);
  SessionSettings deferred = settings;
  deferred.step.weight_gradients = engine::WeightGradientQueue::Policy::kDeferred;
  EXPECT_TRUE(train(deferred) == expected);
}

// Expects that two ranks train as one rank does, up to `tolerance`, and that every level of sharding gives
// the bits of two replicas and needs as much memory as was measured.
inline void expect_two_ranks_train_as_one(SessionSettings settings, int steps, double tolerance) {
  const Outcome one = train_on_ranks(settings, 1, kAlone, steps, 4);
  const Outcome replicated = train_on_ranks(settings, 2, kAlone, steps, 4);
  EXPECT_LE(distance(replicated, one), tolerance);
  expect_measured(replicated);
  for (const engine::Sharding level :
       {engine::Sharding::kStates, engine::Sharding::kGradients, engine::Sharding::kParameters}) {
    settings.sharding = level;
    const Outcome sharded = train_on_ranks(settings, 2, kAlone, steps, 4);
    EXPECT_TRUE(sharded == replicated) << static_cast<int>(level);
    expect_measured(sharded);
  }
}

}  // namespace primus::test
