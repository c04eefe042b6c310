// Tests whether a run fits into memory, and whether the suggested changes make it fit.
#include "lm/train/forecast/memory_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "device/forwarding_device.h"
#include "lm/model/family.h"
#include "lm/train/settings/training_settings.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus {
namespace {

using ::testing::HasSubstr;

const FamilyRegistry& families() {
  static const FamilyRegistry registry = builtin_families();
  return registry;
}

config::Experiment experiment(const std::vector<std::string>& command_line) {
  config::LoadOptions options;
  options.environment = [](const std::string&) { return std::nullopt; };
  options.preset_dirs.emplace();
  return config::load_experiment_text(
      "{work_group: g, user_name: u, exp_name: e, workspace: w, modules: {pre_trainer: {overrides: "
      "{mock_data: true, "
      "num_layers: 8, hidden_size: 128, num_attention_heads: 4, vocab_size: 512, seq_length: 512, "
      "micro_batch_size: 16, global_batch_size: 16, num_threads: 1}}}}",
      "exp.yaml", command_line, options);
}

StepMeasurement measure(const config::Experiment& e, const ModelConfig& model) {
  engine::Rank rank(turbo::make_cpu_device(1));
  return measure_session(rank, session_settings_of(e, model), families());
}

MemoryNeed need_of(const config::Experiment& e) {
  const ModelConfig model = model_config_of(e, std::nullopt, families());
  return memory_need(e, session_settings_of(e, model), measure(e, model));
}

MemoryFit fit(const config::Experiment& e, std::int64_t available) {
  const ModelConfig model = model_config_of(e, std::nullopt, families());
  return fit_memory(e, model, families(), measure(e, model),
                    {.device = available, .host = available, .total = available});
}

TEST(MemoryFit, ARunThatFitsIsAccepted) {
  const config::Experiment e = experiment({});
  const MemoryNeed need = need_of(e);
  EXPECT_GT(need.snapshot, 0);
  EXPECT_GT(need.host_buffers, 16 * 512 * 12);
  EXPECT_TRUE(fit(e, 2 * need.total()).fits);
  EXPECT_TRUE(fit(e, 2 * need.total()).changes.empty());
  // The need plus 1000 bytes does not fit, because a small reserve is left for other programs.
  EXPECT_FALSE(fit(e, need.total() + 1000).fits);
  EXPECT_TRUE(fit(e, 0).fits) << "an unknown amount must not refuse a run";
  EXPECT_EQ(need_of(experiment({"async_save=false"})).snapshot, 0);
}

TEST(MemoryFit, EveryChangeMakesItFitAndTheCheapestComesFirst) {
  const std::int64_t all = need_of(experiment({})).total();
  for (const double share : {0.98, 0.9, 0.7, 0.5, 0.3, 0.2, 0.15}) {
    SCOPED_TRACE(share);
    const auto available = static_cast<std::int64_t>(share * static_cast<double>(all));
    const MemoryFit result = fit(experiment({}), available);
    ASSERT_FALSE(result.fits);
    EXPECT_LE(result.changes.size(), 3U);
    ASSERT_FALSE(result.changes.empty());
    for (const MemoryChange& change : result.changes) {
      const config::Experiment changed = experiment(change.settings);
      EXPECT_TRUE(fit(changed, available).fits) << testing::PrintToString(change.settings);
      EXPECT_EQ(need_of(changed).total(), change.need.total());
      EXPECT_THAT(describe_changes(result), HasSubstr(change.settings.front()));
    }
  }
  // The need slightly exceeds the memory. Without the copy for checkpoints, the run fits, and training is
  // unchanged.
  EXPECT_EQ(fit(experiment({}), all).changes.front().settings, std::vector<std::string>{"async_save=false"});
}

// Shorter sequences teach less context. They are offered alone only if nothing else makes the run fit.
TEST(MemoryFit, ACombinationComesBeforeShorterSequences) {
  const auto with = [](std::vector<std::string> words) {
    // Few sequences, so that smaller microbatches save less than shorter sequences.
    words.insert(words.begin(), {"micro_batch_size=2", "seq_length=2048"});
    return experiment(words);
  };
  const std::vector<std::string> others = {"async_save=false",           "micro_batch_size=1",
                                           "recompute_granularity=full", "exp_avg_dtype=fp8",
                                           "exp_avg_sq_dtype=fp8",       "bf16=true"};
  const std::int64_t least = need_of(with(others)).total(), most = need_of(with({})).total();
  int preferred = 0;
  for (int percent = 5; percent < 100; percent += 5) {
    const std::int64_t available = least + (most - least) / 100 * percent;
    const MemoryFit result = fit(with({}), available);
    if (result.changes.empty() || !result.changes.back().settings.front().starts_with("seq_length")) continue;
    EXPECT_TRUE(result.changes.size() > 1 || !fit(with(others), available).fits) << percent;
    if (result.changes.front().settings.size() < 2) continue;
    ++preferred;
    EXPECT_TRUE(fit(with(result.changes.front().settings), available).fits) << percent;
  }
  EXPECT_GT(preferred, 0);
}

// On a device with separate memory, the copy for checkpoints takes no device memory.
TEST(MemoryFit, ACombinationHasOnlyChangesThatHelp) {
  const config::Experiment e = experiment({});
  const ModelConfig model = model_config_of(e, std::nullopt, families());
  const StepMeasurement measured = measure(e, model);
  int combined = 0;
  for (int percent = 101; percent < 120; percent += 6) {
    const MemoryFit result =
        fit_memory(e, model, families(), measured,
                   {.device = measured.memory.persistent / 100 * percent, .host = 0, .shared = false});
    for (const MemoryChange& change : result.changes) {
      combined += change.settings.size() > 1;
      EXPECT_THAT(change.settings, testing::Not(testing::Contains("async_save=false"))) << percent;
    }
  }
  EXPECT_GT(combined, 0);
}

// If weights, gradients and fp32 moments already exceed the memory, suggests 8-bit moments and, for a loaded
// model, adapters.
TEST(MemoryFit, NarrowMomentsAndAdaptersAreOfferedIfWeightsAreTooLarge) {
  const std::vector<std::string> small = {"micro_batch_size=1", "seq_length=64", "async_save=false",
                                          "bf16=true"};
  const MemoryNeed need = need_of(experiment(small));
  const std::int64_t available = need.device.persistent * 9 / 10;
  const MemoryFit moments = fit(experiment(small), available);
  ASSERT_FALSE(moments.fits);
  ASSERT_EQ(moments.changes.size(), 1U);
  EXPECT_EQ(moments.changes.front().settings,
            (std::vector<std::string>{"exp_avg_dtype=fp8", "exp_avg_sq_dtype=fp8"}));
  auto words = small;
  words.insert(words.end(), moments.changes.front().settings.begin(), moments.changes.front().settings.end());
  EXPECT_TRUE(fit(experiment(words), available).fits);

  words = small;
  words.emplace_back("load=somewhere");
  const MemoryFit adapters = fit(experiment(words), available);
  ASSERT_EQ(adapters.changes.size(), 2U);
  EXPECT_EQ(adapters.changes.back().settings, std::vector<std::string>{"lora.enabled=true"});
  words.emplace_back("lora.enabled=true");
  EXPECT_TRUE(fit(experiment(words), available).fits);
  EXPECT_EQ(need_of(experiment(words)).total(), adapters.changes.back().need.total());
}

// If device and host have separate memory, a change is described by the need of device memory. The copy for
// checkpoints is in host memory.
TEST(MemoryFit, ChangesAreDescribedByTheMemoryThatIsShort) {
  MemoryFit fit;
  fit.supply = {.device = 80 << 20, .host = std::int64_t{1} << 40, .shared = false};
  fit.changes.push_back(
      {{"seq_length=4096"},
       "shorter sequences",
       {.device = {.persistent = 70 << 20, .stash = 0, .scratch = 0}, .snapshot = 500 << 20}});
  EXPECT_EQ(describe_changes(fit), "seq_length=4096 needs 70.0 MiB (shorter sequences)");
  fit.supply.shared = true;
  EXPECT_EQ(describe_changes(fit), "seq_length=4096 needs 570 MiB (shorter sequences)");
}

// Data-parallel ranks that all hold the optimizer states are advised to shard them.
TEST(MemoryFit, RanksGetTheHintToShardReplicatedState) {
  constexpr int kRanks = 8;
  const auto fit_of_rank = [&](const config::Experiment& e, std::int64_t available) {
    const ModelConfig model = model_config_of(e, std::nullopt, families());
    engine::Rank rank(turbo::make_cpu_device(1), measuring_mesh(e, kRanks, 0));
    return fit_memory(e, model, families(),
                      measure_session(rank, session_settings_of(e, model, kRanks), families()),
                      {.device = available, .host = available, .total = available}, kRanks);
  };
  const std::vector<std::string> small = {"micro_batch_size=1", "seq_length=64"};
  const std::int64_t weights = fit_of_rank(experiment(small), 1).need.device.persistent;
  const MemoryFit result = fit_of_rank(experiment(small), weights);
  ASSERT_FALSE(result.fits);
  ASSERT_FALSE(result.changes.empty());
  EXPECT_THAT(describe_changes(result), HasSubstr("data_parallel_sharding_strategy=optim"));
  for (const MemoryChange& change : result.changes) {
    auto words = small;
    words.insert(words.end(), change.settings.begin(), change.settings.end());
    EXPECT_TRUE(fit_of_rank(experiment(words), weights).fits) << testing::PrintToString(change.settings);
  }
}

TEST(MemoryFit, NoChangeIsOfferedIfWeightsAloneDoNotFit) {
  const MemoryFit result = fit(experiment({}), 1 << 20);
  EXPECT_FALSE(result.fits);
  EXPECT_TRUE(result.changes.empty());
  EXPECT_THAT(describe_changes(result), HasSubstr("smaller model"));
  EXPECT_THAT(describe_lack(result), HasSubstr("but 1.00 MiB of 1.00 MiB are free"));
}

// Amounts that would look equal after rounding get more digits.
TEST(MemoryFit, ComparedAmountsAreDistinguishable) {
  const auto lack = [](std::int64_t need, std::int64_t have, bool shared = true) {
    MemoryFit fit;
    fit.fits = false;
    fit.need.device.persistent = need;
    fit.supply = {.device = have, .host = have, .shared = shared, .total = std::int64_t{24} << 30};
    return describe_lack(fit);
  };
  const std::int64_t gib = std::int64_t{1} << 30;
  EXPECT_EQ(lack(22 * gib + (700 << 20), 22 * gib),
            "the run needs 22.7 GiB of memory, but 22.0 GiB of 24.0 GiB are free");
  EXPECT_EQ(lack(22 * gib + (20 << 20), 22 * gib),
            "the run needs 22548 MiB of memory, but 22528 MiB of 24.0 GiB are free");
  EXPECT_EQ(lack(22 * gib + 1, 22 * gib),
            "the run needs 23622320129 B of memory, but 23622320128 B of 24.0 GiB are free");
  EXPECT_THAT(lack(22 * gib + (20 << 20), 22 * gib, false), HasSubstr("needs 22548 MiB of device memory"));
}

// If two ranks share the layers, the reported need and the suggestions refer to the part of one rank.
// Microbatches that the ranks cannot share are not suggested.
TEST(MemoryFit, RanksThatShareLayersAreMeasuredInTheirMesh) {
  const config::Experiment e =
      experiment({"tensor_model_parallel_size=2", "seq_length=511", "micro_batch_size=2"});
  const ModelConfig model = model_config_of(e, std::nullopt, families());
  const SessionSettings settings = session_settings_of(e, model, 2);
  engine::Rank rank(turbo::make_cpu_device(1), measuring_mesh(e, 2, 0));
  const StepMeasurement measured = measure_session(rank, settings, families());
  const MemoryNeed need = memory_need(e, settings, measured);
  EXPECT_LT(static_cast<double>(need.device.persistent),
            0.6 * static_cast<double>(need_of(experiment({})).device.persistent));
  const std::int64_t available = need.total() / 5 * 4;
  const MemoryFit result = fit_memory(e, model, families(), measured,
                                      {.device = available, .host = available, .total = available}, 2, 0);
  EXPECT_FALSE(result.fits);
  ASSERT_FALSE(result.changes.empty());
  for (const MemoryChange& change : result.changes)
    EXPECT_THAT(change.settings, testing::Not(testing::Contains("micro_batch_size=1")));
}

// If device and host have separate memory, as with a GPU, the run must fit into each of the two.
TEST(MemoryFit, DeviceAndHostMemoryAreSeparate) {
  const MemoryNeed need{
      .device = {.persistent = 800, .stash = 100, .scratch = 0}, .snapshot = 300, .host_buffers = 10};
  EXPECT_TRUE(fits(need, {.device = 1000, .host = 400, .shared = false}));
  EXPECT_FALSE(fits(need, {.device = 800, .host = 4000, .shared = false}));
  EXPECT_FALSE(fits(need, {.device = 8000, .host = 310, .shared = false}));
  EXPECT_FALSE(fits(need, {.device = 1000, .host = 1000, .shared = true}));
}

// Memory of a GPU that other programs use does not count as available.
TEST(MemoryFit, DeviceMemoryCountsWhatIsFree) {
  class Gpu : public test::ForwardingDevice {
   public:
    Gpu() : ForwardingDevice(turbo::make_cpu_device(1)) {}
    DeviceProperties properties() const override {
      DeviceProperties properties = ForwardingDevice::properties();
      properties.host_memory = false;
      return properties;
    }
    DeviceMemoryUse memory_use() const override { return {.used = 300, .total = 1000}; }
  };
  const MemorySupply supply = supply_of(Gpu());
  EXPECT_EQ(supply.device, 700);
  EXPECT_EQ(supply.total, 1000);
  EXPECT_FALSE(supply.shared);
  EXPECT_GT(supply.host, 1000);
  EXPECT_TRUE(supply_of(*turbo::make_cpu_device(1)).shared);
}

}  // namespace
}  // namespace primus
