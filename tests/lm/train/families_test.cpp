// Tests every family with all training options of its routers. Families that are published with multi-token
// prediction are tested with it. The number of threads, the guard device, recomputation and deferred weight
// gradients change no bit, and measuring predicts the memory of a step.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "lm/model/golden_configs.h"
#include "lm/train/finite_differences.h"
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
    EXPECT_EQ(train(turbo::make_cpu_device(1), s), reference);
    s.step.recompute = {};
    EXPECT_EQ(train(turbo::make_cpu_device(1), s), reference);
  }
}

// The family primus_gpt consists of parts of published families. With the parts of one published family,
// primus_gpt trains exactly as that family does.
TEST(PrimusGpt, EqualsItsParts) {
  int compared = 0;
  for (const NamedConfig& named : golden_configs()) {
    ModelConfig config = named.config;
    if (config.family != "llama" && config.family != "qwen2" && config.family != "qwen3" &&
        config.family != "mixtral" && config.family != "lfm2") {
      continue;
    }
    ++compared;
    SessionSettings s = tiny_settings(DType::kF32, config);
    s.step.sequence = 24;
    const TrainedState published = train(turbo::make_cpu_device(2), s);
    s.model.family = "primus_gpt";
    s.model.attention.qkv_bias = config.family == "qwen2";
    s.model.attention.qk_norm = config.family == "qwen3" || config.family == "lfm2";
    EXPECT_EQ(train(turbo::make_cpu_device(2), s), published) << named.name;
  }
  EXPECT_GE(compared, 5);
}

SessionSettings capped_settings(DType compute) {
  SessionSettings s = tiny_settings(compute, tiny_capped());
  s.model.init_std = 0.2;  // large enough for the caps to matter
  s.step.microbatches = 2;
  return s;
}

TEST(PrimusGpt, WithCapsNothingChangesABit) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    SessionSettings s = capped_settings(compute);
    const TrainedState reference = train(turbo::make_cpu_device(2), s);
    EXPECT_TRUE(std::isfinite(reference.steps.back().first));
    EXPECT_EQ(train(guard_device(), s), reference);
    s.step.recompute = {.classes = ~0U};
    EXPECT_EQ(train(turbo::make_cpu_device(3), s), reference);
    s.step.recompute = {.full_layers = 2};
    s.step.weight_gradients = engine::WeightGradientQueue::Policy::kDeferred;
    EXPECT_EQ(train(turbo::make_cpu_device(2), s), reference);
  }
}

TEST(PrimusGpt, WithCapsGradientsEqualFiniteDifferences) {
  SessionSettings s = capped_settings(DType::kF32);
  s.step.microbatches = 1;
  // Chooses all experts, because a small step could change a choice.
  s.model.moe.router.top_k = static_cast<std::int32_t>(s.model.moe.experts);
  s.model.moe.training = {};
  engine::Rank rank(turbo::make_cpu_device(1));
  const auto session = open_session(rank, s, builtin_families());
  session->store().initialize(rank.context(), 3);
  const TestBatch batch(s.step.micro_batch * s.step.sequence, s.model.vocab, 5);
  expect_finite_differences(*session, [&] {
    session->step().begin();
    session->step().microbatch(0, batch);
    session->step().finish_gradients();
    const StepResult result = session->step().result();
    return result.loss + s.model.mtp.training.loss_scale * *result.mtp_loss;
  });
}

// Each cap has an effect, in training and in evaluation, and needs no memory.
TEST(PrimusGpt, CapsChangeTheLossButNotTheMemory) {
  const auto losses = [](double of_output, double of_routers) {
    SessionSettings s = capped_settings(DType::kF32);
    s.model.logit_cap = of_output;
    s.model.moe.logit_cap = of_routers;
    engine::Rank rank(turbo::make_cpu_device(2));
    const auto session = open_session(rank, s, builtin_families());
    session->store().initialize(rank.context(), 3);
    const TestBatch batch(s.step.micro_batch * s.step.sequence, s.model.vocab, 5);
    TrainingStep& step = session->step();
    step.begin();
    for (std::int64_t i = 0; i < s.step.microbatches; ++i) step.microbatch(i, batch);
    step.finish_gradients();
    std::vector<double> found{step.result().loss};
    step.begin_evaluation();
    step.evaluate(batch);
    found.push_back(step.evaluation_loss());
    const engine::MemoryPlan used = rank.high_water();
    return std::pair(found, std::vector{used.persistent, used.stash, used.scratch});
  };
  const auto [without, memory] = losses(0, 0);
  for (const auto& [of_output, of_routers] : {std::pair(1.5, 0.0), {0.0, 0.5}}) {
    const auto [with, memory_with] = losses(of_output, of_routers);
    EXPECT_GT(std::abs(with[0] - without[0]), 1e-3) << of_output;
    EXPECT_GT(std::abs(with[1] - without[1]), 1e-3) << of_output;
    EXPECT_EQ(memory_with, memory);
  }
}

// Returns the weights after one step with fixed gradients.
std::vector<std::vector<std::byte>> weights_after(const SessionSettings& s, double weight_decay,
                                                  std::vector<std::string>& names) {
  engine::Rank rank(turbo::make_cpu_device(2));
  const auto session = open_session(rank, s, builtin_families());
  session->store().initialize(rank.context(), 1);
  for (const engine::Parameter& p : session->store().parameters()) {
    if (p.initializer.kind != engine::Initializer::Kind::kConstant) continue;
    // Weight decay would not change zeros.
    const std::vector<float> ones(static_cast<std::size_t>(p.value.elements()), 1.0F);
    rank.compute().copy_to_device(p.value.data, ones.data(), p.value.bytes());
  }
  session->step().begin();
  for (std::int64_t i = 0; i < s.step.microbatches; ++i)
    session->step().microbatch(i, TestBatch(s.step.sequence, s.model.vocab, 3));
  session->step().finish_gradients();
  session->step().update(1, 1e-2, weight_decay);
  std::vector<std::vector<std::byte>> weights;
  names.clear();
  for (const engine::Parameter& p : session->store().parameters()) {
    names.push_back(p.parts.front().name);
    weights.push_back(bits_of(rank, p.value));
  }
  return weights;
}

TEST_P(Families, OnlyMatricesDecay) {
  std::vector<std::string> names;
  const SessionSettings s = settings(DType::kF32);
  const auto without = weights_after(s, 0, names), with = weights_after(s, 0.5, names);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string_view name = names[i];
    // Excludes indexers, which are not trained, and norms, which do not decay. The norms of latents in
    // flash-linear-attention have the names of weights: attn.q_proj.1.weight and attn.kv_proj.1.weight.
    const bool matrix =
        (name.ends_with("weight") || name.ends_with("_proj") || name.ends_with("_fn")) &&
        name.find("norm") == std::string_view::npos && !name.ends_with(".attn.q_proj.1.weight") &&
        !name.ends_with(".attn.kv_proj.1.weight") && name.find(".indexer.") == std::string_view::npos;
    EXPECT_EQ(with[i] != without[i], matrix) << name;
  }
}

// Expects that a step in arenas of the planned sizes uses them completely.
void expect_measured(const engine::MemoryPlan& plan, const SessionSettings& s) {
  engine::Rank rank(turbo::make_cpu_device(2));
  rank.reserve(plan);
  TrainingSession session(rank, s, builtin_families());
  session.store().initialize(rank.context(), 1);
  session.step().begin();
  for (std::int64_t i = 0; i < s.step.microbatches; ++i)
    session.step().microbatch(i, TestBatch(s.step.sequence, s.model.vocab, 3));
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

// Experts have T * top_k rows in total for any routing, so the measured memory is exact for any routing.
TEST_P(Families, MeasuringIsExactForAnyRouting) {
  using Forced = turbo::RouterRule::Forced;
  SessionSettings measured = settings(DType::kBF16);
  measured.evaluation = false;
  if (measured.model.moe.experts == 0) GTEST_SKIP() << "the family has no experts";
  engine::Rank measuring(turbo::make_cpu_device(2));
  const engine::MemoryPlan plan = measure_session(measuring, measured, builtin_families()).memory;
  for (const Forced forced : {Forced::kEven, Forced::kUniform, Forced::kNo}) {
    SessionSettings s = measured;
    s.model.moe.training.forced = forced;
    // Without forced routing, experts overflow here, and most rows are unused.
    if (forced == Forced::kNo) s.model.moe.training.capacity_factor = 0.3;
    expect_measured(plan, s);
  }
}

}  // namespace
}  // namespace primus::test
