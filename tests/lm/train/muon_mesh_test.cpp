// Muon orthogonalises whole matrices, but some meshes split matrices. Experts and pipeline stages hold whole
// matrices, so updates equal those of one device. Each tensor rank treats its part of a matrix as a separate
// matrix (muon_tp_mode: blockwise, as in Megatron-LM). The update of a part differs from the update on one
// device, but is equal on every level of sharding.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "config/trainer_config.h"
#include "lm/train/rank_training.h"

namespace primus::test {
namespace {

using engine::MeshShape;
using engine::ScheduleKind;
using engine::Sharding;

constexpr int kSteps = 10, kMicrobatches = 4;

SessionSettings muon_settings(const ModelConfig& model, DType compute = DType::kF32) {
  SessionSettings settings = tiny_settings(compute, model);
  settings.optimizer.rules = update_rules_of({.optimizer = "muon", .muon_fp32_matmul_prec = "high"});
  return settings;
}

ModelConfig mixture() {
  ModelConfig c = tiny_mixture();
  c.kv_heads = 4;
  c.moe.experts = 4;
  return c;
}

// Sums over ranks round differently, and Muon multiplies small singular values by up to 494.
constexpr double kTolerance = 1e-4;

TEST(MuonOnMeshes, EqualsOneDeviceWithExpertRanks) {
  SessionSettings settings = muon_settings(mixture());
  const Outcome one = train_on_ranks(settings, 1, {}, kSteps, kMicrobatches);
  EXPECT_LT(one.losses.back(), one.losses.front());
  for (const Sharding sharding : {Sharding::kNone, Sharding::kStates, Sharding::kParameters}) {
    SCOPED_TRACE(static_cast<int>(sharding));
    settings.sharding = sharding;
    EXPECT_LE(distance(train_on_ranks(settings, 2, {.expert = 2}, kSteps, kMicrobatches), one), kTolerance);
    EXPECT_LE(distance(train_on_ranks(settings, 4, {.expert = 2}, kSteps, kMicrobatches), one), kTolerance);
  }
}

TEST(MuonOnMeshes, EqualsOneDeviceOnPipelineStages) {
  for (const ModelConfig& model : {tiny_llama(), mixture()}) {
    SessionSettings settings = muon_settings(model);
    const Outcome one = train_on_ranks(settings, 1, {}, kSteps, kMicrobatches);
    for (const ScheduleKind kind : {ScheduleKind::kOneForwardOneBackward, ScheduleKind::kZeroBubbleV}) {
      SCOPED_TRACE(model.family + " " + std::string(engine::traits_of(kind).name));
      const int chunks = engine::traits_of(kind).v_shaped ? 2 : 1;
      settings.step.pipeline = {
          .schedule = kind, .chunks = chunks, .blocks = even_parts(model.layers, 2 * chunks).blocks};
      settings.sharding = Sharding::kNone;
      EXPECT_LE(distance(train_on_ranks(settings, 2, {.pipeline = 2}, kSteps, kMicrobatches), one),
                kTolerance);
      settings.sharding = Sharding::kStates;
      EXPECT_LE(distance(train_on_ranks(settings, 4, {.pipeline = 2}, kSteps, kMicrobatches), one),
                kTolerance);
      if (model.moe.experts == 0) continue;
      const MeshShape both{.pipeline = 2, .expert = 2};
      EXPECT_LE(distance(train_on_ranks(settings, 4, both, kSteps, kMicrobatches), one), kTolerance);
    }
  }
}

// Returns the sum of squares of the update from `before` to `after` with learning rate `rate`, after the
// weight decay `decay` is taken out.
double squares_of_update(const std::vector<float>& before, const std::vector<float>& after, double rate,
                         double decay) {
  double sum = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const double update = (before[i] * (1 - rate * decay) - after[i]) / rate;
    sum += update * update;
  }
  return sum;
}

// An orthogonalised matrix has singular values of about 1. A matrix with more rows than columns is scaled by
// sqrt(rows / columns). So the sum of squares of the update is about the number of rows. The matrix of 48 x
// 80 gives 48. A tensor rank's part of 48 x 40 also gives 48. If the part were updated as half of the whole
// matrix, it would give 24.
TEST(MuonOnMeshes, TreatsATensorRanksPartAsAMatrix) {
  ModelConfig model = tiny_llama();
  model.kv_heads = 4;
  model.layers = 1;
  SessionSettings settings = muon_settings(model);
  settings.optimizer.rules = update_rules_of(
      {.optimizer = "muon", .muon_scale_mode = "shape_scaling", .muon_fp32_matmul_prec = "high"});
  settings.evaluation = false;
  for (const int tensor : {1, 2}) {
    const MeshShape shape{.tensor = tensor};
    const Outcome before = train_on_ranks(settings, tensor, shape, 0, kMicrobatches);
    const Outcome after = train_on_ranks(settings, tensor, shape, 1, kMicrobatches);
    int matrices = 0;
    for (const auto& [name, weights] : before.weights) {
      if (name.find(".down") == std::string::npos) continue;
      ++matrices;
      const double squares = squares_of_update(weights, after.weights.at(name), 3e-3, 0.1);
      EXPECT_NEAR(squares, 48, 0.3 * 48) << name << " of " << tensor;
    }
    EXPECT_EQ(matrices, tensor);
  }
}

TEST(MuonOnMeshes, HasTheSameBitsOnEveryShardingLevelWithTensorRanks) {
  ModelConfig dense = tiny_llama();
  dense.kv_heads = 4;
  for (const auto& [model, shape] :
       {std::pair(dense, MeshShape{.tensor = 2}),
        std::pair(mixture(), MeshShape{.tensor = 2, .expert = 2, .expert_tensor = 2})}) {
    SessionSettings settings = muon_settings(model);
    const Outcome replicated = train_on_ranks(settings, 4, shape, kSteps, kMicrobatches);
    EXPECT_LT(replicated.losses.back(), replicated.losses.front());
    for (const Sharding sharding : {Sharding::kStates, Sharding::kGradients, Sharding::kParameters}) {
      settings.sharding = sharding;
      EXPECT_EQ(train_on_ranks(settings, 4, shape, kSteps, kMicrobatches), replicated)
          << model.family << ", level " << static_cast<int>(sharding);
    }
  }
}

}  // namespace
}  // namespace primus::test
