// Tests that the operator which produces the first NaN or infinity is named, also in the backward pass.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <vector>

#include "lm/train/rank_training.h"
#include "lm/train/tiny_model.h"
#include "turbo/devices/devices.h"

namespace primus::test {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::StartsWith;

// Sets the embedding to zero. The stream of the first block is then zero, so the gradient of its norm is
// divided by the square root of the norm's epsilon.
void forget_embedding(engine::Rank& rank, TrainingSession& session) {
  for (engine::Parameter& p : session.store().parameters()) {
    if (p.name == "embedding" && p.value.data) rank.compute().fill_zero(p.value.data, p.value.bytes());
  }
  rank.compute().synchronize();
}

// Runs step `number`. With `overflows`, the losses of the second microbatch have weights that are finite, but
// too large for the backward pass.
StepResult run_step(TrainingStep& step, const SessionSettings& settings, std::int64_t number,
                    bool overflows) {
  step.begin(number);
  for (std::int64_t i = 0; i < settings.step.microbatches; ++i) {
    TestBatch batch(settings.step.micro_batch * settings.step.sequence, settings.model.vocab, 5);
    if (overflows && i == 1) batch.loss_divisor = 1e-35;
    step.microbatch(i, batch);
  }
  step.finish_gradients();
  return step.result();
}

TEST(NonFinite, ThePassThatProducesAnInfiniteGradientIsNamed) {
  const SessionSettings settings = tiny_settings();
  engine::Rank rank(turbo::make_cpu_device(2));
  const std::unique_ptr<TrainingSession> session = open_session(rank, settings, builtin_families());
  session->store().initialize(rank.context(), 7);
  forget_embedding(rank, *session);
  const StepResult result = run_step(session->step(), settings, 1, true);
  EXPECT_TRUE(std::isfinite(result.loss)) << result.loss;
  EXPECT_FALSE(std::isfinite(result.gradient_norm)) << result.gradient_norm;
  EXPECT_EQ(session->step().find_non_finite(), "");
  EXPECT_THAT(session->step().find_non_finite_gradient(),
              AllOf(StartsWith("layers."), EndsWith("(backward pass)")));
}

TEST(NonFinite, AFiniteStepHasNoSuchOperator) {
  const SessionSettings settings = tiny_settings();
  engine::Rank rank(turbo::make_cpu_device(2));
  const std::unique_ptr<TrainingSession> session = open_session(rank, settings, builtin_families());
  session->store().initialize(rank.context(), 7);
  EXPECT_TRUE(std::isfinite(run_step(session->step(), settings, 1, false).gradient_norm));
  EXPECT_EQ(session->step().find_non_finite(), "");
  EXPECT_EQ(session->step().find_non_finite_gradient(), "");
}

TEST(NonFinite, OnlyTheRankWithTheFaultNamesTheOperator) {
  for (const engine::MeshShape& shape : {engine::MeshShape(), engine::MeshShape{.pipeline = 2}}) {
    std::mutex mutex;
    std::vector<std::string> named(2);
    on_ranks(2, shape, [&](engine::Rank& rank) {
      const SessionSettings settings = tiny_settings();
      const std::unique_ptr<TrainingSession> session = open_session(rank, settings, builtin_families());
      session->store().initialize(rank.context(), 7);
      session->parallel().distribute_values();
      forget_embedding(rank, *session);
      const bool overflows = shape.pipeline > 1 || rank.mesh().rank() == 1;
      const StepResult result = run_step(session->step(), settings, 1, overflows);
      EXPECT_FALSE(std::isfinite(result.gradient_norm));
      EXPECT_EQ(session->step().find_non_finite(), "");
      const std::string first = session->step().find_non_finite_gradient();
      const std::lock_guard lock(mutex);
      named[static_cast<std::size_t>(rank.mesh().rank())] = first;
    });
    if (shape.pipeline == 1) {
      EXPECT_EQ(named[0], "");
      EXPECT_THAT(named[1], StartsWith("layers."));
    } else {
      // The first stage receives the gradient, and adds it outside of its layers.
      EXPECT_THAT(named[0], testing::HasSubstr("(backward pass)"));
    }
  }
}

}  // namespace
}  // namespace primus::test
