// Tests the choice of microbatches and recomputation. The choice fits into memory, no cheaper choice fits,
// and the global batch is unchanged.
#include "lm/train/forecast/fit_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "lm/model/family.h"
#include "lm/train/settings/training_settings.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

constexpr int kLayers = 6;

const FamilyRegistry& families() {
  static const FamilyRegistry registry = builtin_families();
  return registry;
}

// Returns an experiment that recomputes all blocks. Recomputing fewer blocks would be enough.
config::Experiment experiment(Words command_line) {
  config::LoadOptions options;
  options.environment = [](const std::string&) { return std::nullopt; };
  options.preset_dirs.emplace();
  return config::load_experiment_text(
      "{work_group: g, user_name: u, exp_name: e, workspace: w, modules: {pre_trainer: {overrides: "
      "{mock_data: true, num_layers: 6, hidden_size: 128, num_attention_heads: 4, vocab_size: 256, "
      "seq_length: 512, micro_batch_size: 4, global_batch_size: 16, num_threads: 1, async_save: false, "
      "recompute_granularity: full, recompute_method: block, recompute_num_layers: 6}}}}",
      "exp.yaml", command_line, options);
}

struct Measured {
  MemoryNeed need;  // need of the stage that needs the most memory
  double flops = 0;
};
Measured measure(const Words& settings, int world = 1) {
  const config::Experiment e = experiment(settings);
  const ModelConfig model = model_config_of(e, std::nullopt, families());
  const SessionSettings session = session_settings_of(e, model, world);
  const engine::MeshShape mesh = mesh_shape_of(e, world);
  Measured maximum;
  for (int stage = 0; stage < mesh.pipeline; ++stage) {
    engine::Rank rank(turbo::make_cpu_device(1), measuring_mesh(e, world, stage * mesh.stage_ranks(world)));
    const StepMeasurement measured = measure_session(rank, session, families());
    const MemoryNeed need = memory_need(e, session, measured);
    if (need.total() > maximum.need.total()) maximum = {need, measured.kernels.total_flops()};
  }
  return maximum;
}

MemorySupply supply_of(std::int64_t bytes) { return {.device = bytes, .host = bytes, .total = bytes}; }

FitChoice choose(std::int64_t bytes, const Words& more = {}, int world = 1) {
  const config::Experiment e = experiment(more);
  return choose_fit(e, model_config_of(e, std::nullopt, families()), families(), supply_of(bytes), world);
}

std::int64_t total(const Words& settings) { return measure(settings).need.total(); }

const Words kNone = {"recompute_granularity=none", "recompute_method=null", "recompute_num_layers=null"};
Words with(Words more, const Words& settings = kNone) {
  more.insert(more.end(), settings.begin(), settings.end());
  return more;
}

TEST(FitChoice, EnoughMemoryTakesTheWholeBatchWithoutRecomputation) {
  const FitChoice choice = choose(std::int64_t{1} << 40);
  EXPECT_THAT(choice.settings, Contains("micro_batch_size=16"));
  EXPECT_THAT(choice.settings, Contains("recompute_granularity=none"));
  EXPECT_THAT(choice.settings, Contains("recompute_layer_ids=null"));
  EXPECT_EQ(choice.microbatches, 1);
  EXPECT_EQ(choice.extra_work, 0);
  EXPECT_EQ(choice.next, "");
}

TEST(FitChoice, ChoosesTheLargestMicrobatchWithoutRecomputation) {
  const std::int64_t two = total(with({"micro_batch_size=2"})), four = total(with({"micro_batch_size=4"}));
  const FitChoice choice = choose((two + four) / 2);
  EXPECT_THAT(choice.settings, Contains("micro_batch_size=2"));
  EXPECT_THAT(choice.settings, Contains("recompute_granularity=none"));
  EXPECT_EQ(choice.microbatches, 8);
  EXPECT_EQ(choice.need.total(), two);
  EXPECT_THAT(choice.next, HasSubstr("micro_batch_size=4 without recomputation would need"));
  EXPECT_THAT(describe_choice(choice, supply_of((two + four) / 2)),
              AllOf(HasSubstr("fit: micro_batch_size=2 recompute_granularity=none, 8 microbatches a step\n"),
                    HasSubstr("no recomputation"), Not(HasSubstr("null"))));
}

// The memory suffices for the smallest microbatch with full recomputation, but not without recomputation. The
// choice fits into memory. No other policy that fits needs less work.
TEST(FitChoice, ChoosesTheLeastRecomputationIfSmallMicrobatchesDoNotFit) {
  const Words smallest = {"micro_batch_size=1"};
  const double maximum = static_cast<double>(total(with(smallest)));
  const double minimum = static_cast<double>(total({"micro_batch_size=1"}));
  ASSERT_LT(minimum, 0.9 * maximum);
  std::vector<Words> policies = {{"recompute_granularity=selective", "recompute_method=null"}};
  for (int blocks = 1; blocks <= kLayers; ++blocks) {
    policies.push_back({"recompute_granularity=full", "recompute_method=block",
                        "recompute_num_layers=" + std::to_string(blocks)});
  }
  for (const double share : {0.02, 0.3, 0.6, 0.95}) {
    SCOPED_TRACE(share);
    // The number of bytes includes the reserve for other programs (fits()).
    const auto bytes = static_cast<std::int64_t>((minimum + share * (maximum - minimum)) / 0.95) + 1;
    const FitChoice choice = choose(bytes);
    const Measured chosen = measure(choice.settings);
    EXPECT_TRUE(fits(chosen.need, supply_of(bytes)));
    EXPECT_EQ(chosen.need.total(), choice.need.total());
    EXPECT_THAT(choice.settings, Contains("micro_batch_size=1"));
    EXPECT_GT(choice.extra_work, 0);
    for (const Words& policy : policies) {
      const Measured other = measure(with(smallest, policy));
      if (fits(other.need, supply_of(bytes))) {
        EXPECT_LE(chosen.flops, other.flops) << testing::PrintToString(policy);
      }
    }
    EXPECT_THAT(choice.next, HasSubstr("micro_batch_size=1 without recomputation would need"));
  }
}

// In a deep model, recomputing groups of blocks keeps less memory than recomputing each block separately.
TEST(FitChoice, GroupsOfBlocksAreRecomputedIfSingleBlocksNeedTooMuch) {
  const Words base = {"num_layers=160", "recompute_num_layers=160", "hidden_size=64", "seq_length=2048",
                      "micro_batch_size=1"};
  const std::int64_t single = total(base);
  Words grouped = base;
  grouped.insert(grouped.end(), {"recompute_method=uniform", "recompute_num_layers=2"});
  const std::int64_t groups = total(grouped);
  ASSERT_LT(groups, single);
  const auto bytes = static_cast<std::int64_t>(static_cast<double>(groups + single) / 2 / 0.95);
  ASSERT_FALSE(fits(measure(base).need, supply_of(bytes)));
  const FitChoice choice = choose(bytes, base);
  EXPECT_THAT(choice.settings, Contains("recompute_method=uniform"));
  EXPECT_LE(choice.need.total(), bytes);
}

TEST(FitChoice, IfNothingFitsTheCheapestChangesAreNamed) {
  const Words smallest = {"micro_batch_size=1", "async_save=true"};
  const std::int64_t bytes = total(smallest) * 9 / 10;
  try {
    choose(bytes, {"async_save=true"});
    FAIL() << "a choice was made, though nothing fits";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("--fit: with micro_batch_size=1 and all blocks recomputed"),
                                    HasSubstr("the run needs")));
    EXPECT_THAT(error.hint(), HasSubstr("async_save=false micro_batch_size=1 recompute_granularity=full"));
  }
  EXPECT_THROW(choose(1 << 20), Error);
}

// Each change that a hint suggests makes the run fit, also without --fit.
TEST(FitChoice, HintsNameEverySettingThatTheyNeed) {
  constexpr int kRanks = 4;
  const Words small = {"seq_length=256", "hidden_size=256"};
  const auto need_of = [&](Words settings) {
    settings.insert(settings.begin(), small.begin(), small.end());
    settings.insert(settings.begin(), "micro_batch_size=1");
    return measure(settings, kRanks).need.total();
  };
  const auto sharded = [](const char* level, Words more) {
    more.push_back(std::string("data_parallel_sharding_strategy=") + level);
    return more;
  };
  const std::int64_t first = need_of(sharded("optim", {})),
                     maximum = need_of(sharded("optim_grads_params", kNone));
  // Sets the memory to the need of the first sharding level with all blocks recomputed, and then to the need
  // of the last level without recomputation.
  for (const std::int64_t need : {first, std::max(first, maximum)}) {
    const std::int64_t bytes = need * 100 / 95 + 1;
    ASSERT_GT(need_of({}), bytes);
    std::string hint;
    try {
      choose(bytes, small, kRanks);
    } catch (const Error& error) {
      hint = error.hint();
    }
    ASSERT_THAT(hint, HasSubstr("data_parallel_sharding_strategy=optim"));
    EXPECT_EQ(hint.find("recompute_granularity=none") != std::string::npos, need >= maximum) << hint;
    std::istringstream changes(hint);
    for (std::string change; std::getline(changes, change, ';');) {
      Words settings = small;
      std::istringstream words(change.substr(0, change.find(" needs ")));
      for (std::string word; words >> word;) settings.push_back(word);
      if (change.find("granularity=none") != std::string::npos) settings = with(settings);
      EXPECT_TRUE(fits(measure(settings, kRanks).need, supply_of(bytes))) << change;
    }
  }
}

// Measures one rank of a mesh, and chooses only microbatches that the ranks can share.
TEST(FitChoice, RanksAreMeasuredInTheirMesh) {
  for (const Words& mesh :
       {Words{"tensor_model_parallel_size=2"}, Words{"pipeline_model_parallel_size=2"}, Words{}}) {
    SCOPED_TRACE(testing::PrintToString(mesh));
    Words one = with(mesh);
    one.push_back("micro_batch_size=1");
    const std::int64_t bytes = measure(one, 2).need.total() * 100 / 90;
    const FitChoice choice = choose(bytes, mesh, 2);
    Words chosen = mesh;
    chosen.insert(chosen.end(), choice.settings.begin(), choice.settings.end());
    const Measured measured = measure(chosen, 2);
    EXPECT_TRUE(fits(measured.need, supply_of(bytes)));
    EXPECT_THAT(choice.settings, Contains("recompute_granularity=none"));
  }
  // Two data-parallel ranks cannot share a microbatch of 16.
  const FitChoice choice = choose(std::int64_t{1} << 40, {}, 2);
  EXPECT_THAT(choice.settings, Contains("micro_batch_size=8"));
  EXPECT_EQ(choice.microbatches, 1);
  // In a pipeline, fewer microbatches mean a larger bubble.
  const FitChoice stages = choose(std::int64_t{1} << 40, {"pipeline_model_parallel_size=2"}, 2);
  EXPECT_THAT(stages.settings, Contains("micro_batch_size=1"));
}

TEST(FitChoice, AnExperimentThatRanksCannotShareIsRefused) {
  EXPECT_THROW(choose(std::int64_t{1} << 40, {"tensor_model_parallel_size=3"}, 2), Error);
}

}  // namespace
}  // namespace primus
