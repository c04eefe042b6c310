// The host reads a step's loss and norm after it has started the next step. The host waits once per step, and
// reads the values that it would read without this delay. It still handles bad steps and failures in time.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/counting_device.h"
#include "lm/train/tiny_model.h"

namespace primus::test {
namespace {

constexpr int kSteps = 6;

struct Late {
  std::vector<std::pair<double, double>> steps;  // loss and norm
  std::vector<std::vector<std::int32_t>> loads;  // loads of the first routed layer
  std::vector<std::vector<std::byte>> weights;
  std::int64_t waits = 0;  // how often the host waited, in all steps
  bool operator==(const Late&) const = default;
};

TestBatch batch_of(const SessionSettings& settings, int step, std::int64_t microbatch) {
  return {settings.step.micro_batch * settings.step.sequence, settings.model.vocab,
          static_cast<std::uint64_t>(step * 100 + microbatch)};
}

// Trains on an asynchronous device. `late`: reads results as late as possible.
Late train_late(const SessionSettings& settings, bool late) {
  const auto counter = std::make_shared<CountingDevice::Waits>();
  engine::Rank rank(std::make_unique<CountingDevice>(guard_device(), counter));
  const std::unique_ptr<TrainingSession> session = open_session(rank, settings, builtin_families());
  session->store().initialize(rank.context(), 7);
  TrainingStep& step = session->step();
  Late out;
  const auto read = [&] {
    const StepResult result = step.result();
    out.steps.emplace_back(result.loss, result.gradient_norm);
    if (!result.routing.empty()) out.loads.push_back(result.routing.front().load);
  };
  const auto waits = [&] { return counter->streams + counter->events; };
  const std::int64_t before = waits();
  for (int s = 0; s < kSteps; ++s) {
    step.begin(s + 1);
    for (std::int64_t i = 0; i < settings.step.microbatches; ++i)
      step.microbatch(i, batch_of(settings, s, i));
    step.finish_gradients();
    if (late && s > 0) read();
    if (!late) read();
    step.update(s + 1, 1e-2, 0.1);
  }
  if (late) read();
  out.waits = waits() - before;
  for (const engine::ParameterUnit& unit : session->store().units())
    out.weights.push_back(weight_bits(rank, unit));
  return out;
}

TEST(LateResult, EqualsTheImmediateResultAndWaitsOncePerStep) {
  for (const ModelConfig& model : {tiny_llama(), tiny_mixture(), tiny_deepseek()}) {
    const SessionSettings settings = tiny_settings(DType::kBF16, model);
    const Late at_once = train_late(settings, false), late = train_late(settings, true);
    EXPECT_EQ(late.steps.size(), static_cast<std::size_t>(kSteps));
    EXPECT_EQ(late, at_once) << model.family;
    EXPECT_EQ(late.waits, kSteps) << model.family;
  }
}

// Even if no result is read, at most two steps are in flight, because the host waits before it reuses the
// buffers of a step.
TEST(LateResult, StepsWithoutAReadResultAreWaitedFor) {
  const SessionSettings settings = tiny_settings();
  const Late expected = train_late(settings, false);
  engine::Rank rank(guard_device());
  const std::unique_ptr<TrainingSession> session = open_session(rank, settings, builtin_families());
  session->store().initialize(rank.context(), 7);
  for (int s = 0; s < kSteps; ++s) {
    session->step().begin(s + 1);
    for (std::int64_t i = 0; i < settings.step.microbatches; ++i)
      session->step().microbatch(i, batch_of(settings, s, i));
    session->step().finish_gradients();
    session->step().update(s + 1, 1e-2, 0.1);
  }
  // The last two results are still available, in order.
  for (int s = kSteps - 2; s < kSteps; ++s) {
    const StepResult result = session->step().result();
    EXPECT_EQ(std::pair(result.loss, result.gradient_norm), expected.steps[static_cast<std::size_t>(s)]);
  }
}

// The device itself skips the update of a bad step. When the host reads the result one step later, the
// weights are unchanged and the batch of that step still exists. So the host can still find the first failing
// operator.
TEST(LateResult, ABadStepIsReportedDuringTheNextStep) {
  SessionSettings settings = tiny_settings();
  engine::Rank rank(guard_device());
  const std::unique_ptr<TrainingSession> session = open_session(rank, settings, builtin_families());
  session->store().initialize(rank.context(), 7);
  // Only batches with token 1 fail, because only row 1 of the embedding is NaN.
  constexpr std::int32_t kBad = 1, kGood = 2;
  for (engine::Parameter& p : session->store().parameters()) {
    if (p.name != "embedding") continue;
    const float nan = NAN;
    rank.compute().copy_to_device(static_cast<char*>(p.value.data) + kBad * settings.model.hidden * 4, &nan,
                                  sizeof(nan));
    rank.compute().synchronize();
  }
  TrainingStep& step = session->step();
  for (int s = 0; s < 2; ++s) {
    step.begin(s + 1);
    for (std::int64_t i = 0; i < settings.step.microbatches; ++i) {
      TestBatch batch = batch_of(settings, s, i);
      for (std::int32_t& token : batch.tokens) token = token == kBad ? kGood : token;
      if (s == 0 && i == 1) batch.tokens[5] = kBad;
      step.microbatch(i, batch);
    }
    step.finish_gradients();
    if (s == 0) step.update(1, 1e-2, 0.1);
  }
  EXPECT_TRUE(std::isnan(step.result().loss));
  EXPECT_EQ(step.find_non_finite(), "embedding");
  EXPECT_TRUE(std::isfinite(step.result().loss));  // the second step: the first one changed no weights
}

// If a kernel fails, the step has no result, and waiting for it throws.
TEST(LateResult, AFailureOnTheDeviceGivesNoResult) {
  const SessionSettings settings = tiny_settings();
  engine::Rank rank(guard_device());
  const std::unique_ptr<TrainingSession> session = open_session(rank, settings, builtin_families());
  session->store().initialize(rank.context(), 7);
  TrainingStep& step = session->step();
  for (int s = 0; s < 2; ++s) {
    step.begin(s + 1);
    for (std::int64_t i = 0; i < settings.step.microbatches; ++i) {
      TestBatch batch = batch_of(settings, s, i);
      if (s == 1) batch.tokens[3] = static_cast<std::int32_t>(settings.model.vocab);
      step.microbatch(i, batch);
    }
    step.finish_gradients();
  }
  EXPECT_TRUE(std::isfinite(step.result().loss));
  EXPECT_THROW(step.result(), Error);
}

}  // namespace
}  // namespace primus::test
