// Compares steps of PPO on GPUs with those on the CPU: both losses, their metrics, the common gradient norm
// and the estimates of the answers, in fp32 and bf16. The answers are given. The GPU is emulated, or that of
// PRIMUS_TEST_GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lm/model/family.h"
#include "lm/train/objectives/rules/ppo_rule.h"
#include "lm/train/step/session.h"
#include "lm/train/tiny_model.h"
#include "turbo/operator_test.h"

namespace primus {
namespace {

constexpr std::int64_t kRow = 32, kMaxAnswer = 8;

// Two answers of `answer` and 3 tokens in each of two rows, and padding. The labels of an answer are the last
// tokens of its document.
data::Batch answers_of(std::uint64_t seed, std::int32_t answer, std::int64_t vocab) {
  test::TestBatch batch(2 * kRow, vocab, seed);
  std::ranges::fill(batch.loss_mask, 0.0F);
  std::vector<std::int32_t> starts;
  for (std::int32_t row = 0; row < 2 * kRow; row += kRow) {
    for (const auto& [start, tokens] : {std::pair(row, answer), std::pair(row + 16, 3)}) {
      starts.push_back(start);
      batch.document_roles.push_back(data::DocumentRole::kAnswer);
      batch.document_values.push_back(0.25F * static_cast<float>(starts.size()) - 0.3F);
      for (std::int32_t t = start + 4; t < start + 4 + tokens; ++t)
        batch.loss_mask[static_cast<std::size_t>(t)] = 1;
    }
    starts.push_back(row + 28);
    batch.document_roles.push_back(data::DocumentRole::kNone);
    batch.document_values.push_back(0);
  }
  batch.pack(starts);
  return batch;
}

SessionSettings settings_of(DType compute, bool lora) {
  ModelConfig model = test::tiny_llama();
  model.layers = 2;
  model.hidden = 32;
  model.ffn = 48;
  model.heads = 2;
  model.kv_heads = 1;
  model.head_dim = 16;
  model.vocab = 48;
  if (lora) model.lora = {.dim = 4, .alpha = 8, .modules = {"linear_qkv", "linear_proj"}};
  SessionSettings settings = test::tiny_settings(compute, model);
  settings.evaluation = false;
  settings.step.sequence = kRow;
  settings.step.microbatches = 2;
  settings.step.packed_documents = true;
  const auto initialize = [](std::uint64_t seed) {
    return [seed](TrainingSession& session, ModelInstance& instance) {
      instance.store().initialize(session.rank().context(), seed);
      instance.parallel().distribute_values();
    };
  };
  settings.loss_rule = ppo_rule({.whiten_rewards = true,
                                 .cliprange = 0.02,
                                 .cliprange_value = 0.02,
                                 .reports_entropy = true,
                                 .max_completion_length = kMaxAnswer},
                                initialize(8), {.config = value_model_of, .load = initialize(9)});
  return settings;
}

struct Steps {
  std::vector<double> losses, norms;
  std::vector<std::vector<std::pair<std::string, double>>> metrics;
  std::vector<float> values, advantages, returns;  // of all tokens
};

// Learns three times from the same answers.
Steps train(const SessionSettings& settings, std::unique_ptr<Device> device) {
  Steps out;
  engine::Rank rank(std::move(device));
  const engine::MemoryPlan plan = measure_session(rank, settings, builtin_families()).memory;
  rank.reserve(plan);
  TrainingSession session(rank, settings, builtin_families());
  session.store().initialize(rank.context(), 7);
  session.rule()->load_weights(session);
  std::vector<data::Batch> batches = {answers_of(1, 5, settings.model.vocab),
                                      answers_of(2, 8, settings.model.vocab)};
  for (std::int64_t step = 1; step <= 3; ++step) {
    session.before_step(step, batches);
    session.step().begin(step);
    for (std::int64_t i = 0; i < 2; ++i) session.step().microbatch(i, batches[static_cast<std::size_t>(i)]);
    session.step().finish_gradients();
    const StepResult result = session.step().result();
    session.step().update(step, 3e-3, 0);
    out.losses.push_back(result.loss);
    out.norms.push_back(result.gradient_norm);
    out.metrics.push_back(result.metrics);
  }
  rank.synchronize();
  for (const data::Batch& batch : batches) {
    out.values.insert(out.values.end(), batch.values.begin(), batch.values.end());
    out.advantages.insert(out.advantages.end(), batch.token_advantages.begin(), batch.token_advantages.end());
    out.returns.insert(out.returns.end(), batch.returns.begin(), batch.returns.end());
  }
  EXPECT_EQ(rank.high_water().persistent, plan.persistent);
  EXPECT_LE(rank.high_water().stash, plan.stash);
  EXPECT_LE(rank.high_water().scratch, plan.scratch);
  return out;
}

// Errors are relative to the larger of 1 and the number; those of norms to the norm. Updates amplify errors,
// so `later` limits those of the second and third step.
void expect_near(const Steps& steps, const Steps& expected, double first, double later) {
  ASSERT_EQ(steps.losses.size(), expected.losses.size());
  for (std::size_t s = 0; s < expected.losses.size(); ++s) {
    const double limit = s == 0 ? first : later;
    EXPECT_NEAR(steps.losses[s], expected.losses[s], limit * std::max(1.0, std::abs(expected.losses[s])));
    EXPECT_NEAR(steps.norms[s], expected.norms[s], limit * expected.norms[s]);
    ASSERT_EQ(steps.metrics[s].size(), expected.metrics[s].size());
    for (std::size_t m = 0; m < expected.metrics[s].size(); ++m) {
      const auto& [name, number] = expected.metrics[s][m];
      EXPECT_EQ(steps.metrics[s][m].first, name);
      EXPECT_NEAR(steps.metrics[s][m].second, number, limit * std::max(1.0, std::abs(number))) << name;
    }
  }
  const auto compare = [&](const std::vector<float>& all, const std::vector<float>& expected_all) {
    ASSERT_EQ(all.size(), expected_all.size());
    for (std::size_t t = 0; t < all.size(); ++t)
      EXPECT_NEAR(all[t], expected_all[t], first * std::max(1.0F, std::abs(expected_all[t]))) << t;
  };
  compare(steps.values, expected.values);
  compare(steps.advantages, expected.advantages);
  compare(steps.returns, expected.returns);
}

void expect_equal_on_gpus(const SessionSettings& settings, double first, double later) {
  const Steps expected = train(settings, turbo::make_cpu_device(1));
  for (const turbo::test::DeviceUnderTest& device : turbo::test::devices_under_test()) {
    if (device.plugin.empty() && device.emulated_warp == 0) continue;
    SCOPED_TRACE(device.name());
    expect_near(train(settings, turbo::test::OperatorBench::make_device(device)), expected, first, later);
  }
}

// The guard device runs the kernels of the CPU, so the bits are equal.
TEST(PpoDevices, TheGuardDeviceGivesTheSameBits) {
  for (const bool lora : {false, true}) {
    const SessionSettings settings = settings_of(DType::kF32, lora);
    const Steps expected = train(settings, turbo::make_cpu_device(1)),
                guarded = train(settings, test::guard_device());
    EXPECT_EQ(guarded.losses, expected.losses);
    EXPECT_EQ(guarded.norms, expected.norms);
    EXPECT_EQ(guarded.metrics, expected.metrics);
    EXPECT_EQ(guarded.returns, expected.returns);
  }
}

TEST(PpoDevices, GpusEqualTheCpu) {
  SessionSettings settings = settings_of(DType::kF32, false);
  expect_equal_on_gpus(settings, 1e-5, 1e-4);
  const Steps expected = train(settings, turbo::make_cpu_device(1));
  const auto metric = [&](std::size_t step, const std::string& name) {
    const auto found =
        std::ranges::find(expected.metrics[step], name, &std::pair<std::string, double>::first);
    return found == expected.metrics[step].end() ? std::nan("") : found->second;
  };
  // Some of the later ratios and values are clipped.
  EXPECT_EQ(metric(0, "clip_ratio/region_mean"), 0);
  EXPECT_GT(metric(2, "clip_ratio/region_mean"), 0.1);
  EXPECT_GT(metric(2, "value_clip_ratio"), 0.1);
}

TEST(PpoDevices, GpusEqualTheCpuWithAdaptersAndRecomputation) {
  SessionSettings settings = settings_of(DType::kF32, true);
  settings.step.recompute = {.full_layers = 2};
  expect_equal_on_gpus(settings, 1e-5, 1e-4);
}

TEST(PpoDevices, GpusEqualTheCpuInBf16) {
  expect_equal_on_gpus(settings_of(DType::kBF16, false), 1e-2, 5e-2);
}

}  // namespace
}  // namespace primus
