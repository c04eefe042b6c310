// Every family, with all that its routers can do in training and multi-token prediction where it is
// published with it: threads, hidden memory, recomputation and deferred weight gradients change no bit, and
// measuring tells what a step needs.
#include <gtest/gtest.h>

#include <cmath>

#include "lm/model/golden_configs.h"
#include "lm/train/tiny_model.h"

namespace primus::test {
namespace {

class Families : public testing::TestWithParam<NamedConfig> {
 protected:
  static SessionSettings settings(DType compute) {
    SessionSettings s = tiny_settings(compute, GetParam().config);
    s.step.sequence = 40;  // longer than windows and original contexts
    s.step.micro_batch = 1;
    s.step.microbatches = 2;
    s.model.init_std = 0.1;
    s.model.mtp.enabled = s.model.mtp.layers > 0;
    if (s.model.moe.experts > 0) {
      s.model.moe.training = {.balance_loss = 0.02, .z_loss = 0.01};
      if (s.model.moe.choice_bias) s.model.moe.training.bias_update_rate = 0x1p-7;
    }
    return s;
  }
};

INSTANTIATE_TEST_SUITE_P(Goldens, Families, testing::ValuesIn(golden_configs()),
                         [](const auto& named) { return named.param.name; });

TEST_P(Families, NothingChangesABit) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    SessionSettings s = settings(compute);
    const TrainedState reference = train(turbo::make_cpu_device(2), s);
    EXPECT_TRUE(std::isfinite(reference.steps.back().first));
    EXPECT_EQ(reference.mtp_losses.size(), s.model.mtp.modules() > 0 ? 2U : 0U);
    EXPECT_EQ(train(guard_device(), s), reference);
    s.step.recompute = {.classes = ~0U};
    EXPECT_EQ(train(turbo::make_cpu_device(3), s), reference);
    s.step.recompute = {.full_layers = 3};
    s.step.weight_gradients = engine::WeightGradientQueue::Policy::kDeferred;
    EXPECT_EQ(train(turbo::make_cpu_device(2), s), reference);
    s.step.recompute = {};
    EXPECT_EQ(train(turbo::make_cpu_device(1), s), reference);
  }
}

// A step in arenas of the planned sizes uses them to the last byte.
void expect_measured(const engine::MemoryPlan& plan, const SessionSettings& s) {
  engine::Rank rank(turbo::make_cpu_device(2));
  rank.reserve(plan);
  TrainingSession session(rank, s, builtin_families());
  session.store().initialize(rank.context(), 1);
  session.step().begin();
  for (std::int64_t i = 0; i < s.step.microbatches; ++i)
    session.step().microbatch(i, TestBatch(s.step.sequence, s.model.vocab, 3).host());
  session.step().finish_gradients();
  session.step().update(1, 1e-3, 0);
  EXPECT_TRUE(std::isfinite(session.step().result().loss));
  EXPECT_EQ(rank.high_water().persistent, plan.persistent);
  EXPECT_EQ(rank.high_water().stash, plan.stash);
  EXPECT_EQ(rank.high_water().scratch, plan.scratch);
}

TEST_P(Families, MeasuringIsExact) {
  SessionSettings s = settings(DType::kBF16);
  s.evaluation = false;
  s.step.recompute.full_layers = 1;
  engine::Rank measuring(turbo::make_cpu_device(2));
  const engine::MemoryPlan plan = measure_session(measuring, s, builtin_families()).memory;
  expect_measured(plan, s);
}

// Experts' rows are T * top_k in all, however they spread: what is measured is what any routing uses.
TEST_P(Families, MeasuringIsExactForAnyRouting) {
  using Forced = turbo::RouterRule::Forced;
  SessionSettings measured = settings(DType::kBF16);
  measured.evaluation = false;
  if (measured.model.moe.experts == 0) GTEST_SKIP() << "no experts";
  engine::Rank measuring(turbo::make_cpu_device(2));
  const engine::MemoryPlan plan = measure_session(measuring, measured, builtin_families()).memory;
  for (const Forced forced : {Forced::kEven, Forced::kUniform, Forced::kNo}) {
    SessionSettings s = measured;
    s.model.moe.training.forced = forced;
    // The third: experts overflow, and most rows belong to nobody.
    if (forced == Forced::kNo) s.model.moe.training.capacity_factor = 0.3;
    expect_measured(plan, s);
  }
}

}  // namespace
}  // namespace primus::test
