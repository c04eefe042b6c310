// Tests of linear layers in fp8: which products use fp8, the cost of fp8, and that no execution option
// changes the result of a step. tests/cli/fp8_test.cpp checks that a model learns as in bf16.
#include <gtest/gtest.h>

#include "lm/train/precision_training.h"

namespace primus::test {
namespace {

using engine::PrecisionRecipe;
using turbo::KernelId;

constexpr PrecisionRecipe kHybrid{.fp8 = true, .gradients = DType::kF8E5M2};

// Only linear layers of blocks use fp8. Each of the four blocks has four matrices. Each matrix has three
// products per microbatch, and a step has three microbatches.
TEST(Fp8Training, TheBlocksLinearLayersUseFp8) {
  SessionSettings settings = settings_with({});
  const turbo::Meter plain = kernels_of(settings);
  EXPECT_EQ(plain.lines[static_cast<std::size_t>(KernelId::kFp8Gemm)].calls, 0);
  const auto products = [&](const PrecisionRecipe& recipe) {
    settings.step.precision = recipe;
    turbo::Meter meter = kernels_of(settings);
    EXPECT_EQ(meter.total_flops(), plain.total_flops());
    EXPECT_EQ(meter[KernelId::kQuantizeFp8].calls, 2 * meter[KernelId::kFp8Gemm].calls);
    return meter[KernelId::kFp8Gemm].calls;
  };
  EXPECT_EQ(products(kHybrid), 4 * 4 * 3 * 3);
  EXPECT_EQ(products({.fp8 = true, .weight_gradients = false}), 4 * 4 * 2 * 3);
  EXPECT_EQ(products({.fp8 = true, .first = 1, .last = 2, .layers = 4}), 4 * 3 * 3);
  EXPECT_EQ(products({.fp8 = true, .first = 1, .last = 0, .layers = 4}), 0);
}

// In a mixture without shared experts, only attention uses fp8. Routed experts, routers, embedding and head
// keep their type.
TEST(Fp8Training, InMixturesOnlyAttentionUsesFp8) {
  const ModelConfig model = tiny_mixture();
  EXPECT_EQ(kernels_of(settings_with(kHybrid, model))[KernelId::kFp8Gemm].calls, 4 * 2 * 3 * 3);
}

TEST(Fp8Training, AStepUsesTheMeasuredMemory) {
  for (const bool evaluation : {false, true}) {
    SessionSettings settings = settings_with(kHybrid);
    settings.evaluation = evaluation;
    expect_measured(train(settings));
  }
}

TEST(Fp8Training, FormatsRolesAndBf16BlocksDetermineTheResults) {
  const Outcome plain = train(settings_with({})), hybrid = train(settings_with(kHybrid)),
                e4m3 = train(settings_with({.fp8 = true})),
                two = train(settings_with({.fp8 = true, .weight_gradients = false}));
  EXPECT_FALSE(hybrid == plain);
  EXPECT_FALSE(hybrid == e4m3);
  EXPECT_FALSE(two == e4m3);
  EXPECT_EQ(hybrid.losses[0], e4m3.losses[0]);  // the forward products are equal
  EXPECT_LE(distance(hybrid, plain), 0.02);
  EXPECT_LE(distance(e4m3, plain), 0.02);
  EXPECT_TRUE(train(settings_with({.fp8 = true, .last = 0, .layers = 4})) == plain);
}

TEST(Fp8Training, RecomputationAndDeferredWeightGradientsChangeNoBit) {
  expect_no_bit_changed_by_the_order_of_work(settings_with(kHybrid));
}

// Each microbatch has its own scales, so quantisation does not depend on the number of ranks. Sums of
// gradients differ in their last bits, so one code in a thousand rounds the other way.
TEST(Fp8Training, TwoRanksEqualOneRankAndShardingLevelsHaveTheSameBits) {
  expect_two_ranks_train_as_one(settings_with(kHybrid), 5, 1e-3);
}

// Each of two tensor ranks quantises its own part of a matrix, so results differ by quantisation errors.
TEST(Fp8Training, TensorRanksEqualOneRankUpToScales) {
  ModelConfig model = tiny_llama();
  model.hidden = 64, model.head_dim = 16, model.ffn = 96, model.vocab = 96;
  const Outcome one = train_on_ranks(settings_with(kHybrid, model), 1, kAlone, 5, 2);
  const Outcome two = train_on_ranks(settings_with(kHybrid, model), 2, {.tensor = 2}, 5, 2);
  EXPECT_LE(distance(two, one), 0.02);
  expect_measured(two);
}

TEST(Fp8Training, TheGuardDeviceGivesTheSameBits) {
  const auto losses = [](std::unique_ptr<Device> device) {
    engine::Rank rank(std::move(device));
    const SessionSettings settings = settings_with(kHybrid);
    rank.reserve(measure_session(rank, settings, builtin_families()).memory);
    TrainingSession session(rank, settings, builtin_families());
    session.store().initialize(rank.context(), 7);
    std::vector<double> all;
    for (int s = 1; s <= 2; ++s) {
      session.step().begin(s);
      for (std::int64_t i = 0; i < settings.step.microbatches; ++i) {
        const TestBatch batch(settings.step.micro_batch * settings.step.sequence, settings.model.vocab,
                              static_cast<std::uint64_t>(10 * s + i));
        session.step().microbatch(i, batch);
      }
      session.step().finish_gradients();
      const StepResult result = session.step().result();
      all.insert(all.end(), {result.loss, result.gradient_norm});
      session.step().update(s, 3e-3, 0.1);
    }
    rank.synchronize();
    return all;
  };
  EXPECT_EQ(losses(guard_device()), losses(turbo::make_cpu_device(1)));
}

}  // namespace
}  // namespace primus::test
