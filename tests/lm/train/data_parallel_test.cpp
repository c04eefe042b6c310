// Several ranks train as one device does. Ranks are threads with a device each. Every level of sharding is
// compared with one device and with the other levels.
#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "config/trainer_config.h"
#include "lm/train/rank_training.h"

namespace primus::test {
namespace {

using engine::Sharding;

constexpr int kSteps = 20;

struct Way {
  int microbatches = 8;  // total over all ranks
  Sharding sharding = Sharding::kNone;
  int shards = 0;  // 0: over all ranks
  bool each_microbatch = false;
  bool overlap = true;
  bool reshard = true;
  DType reduce = DType::kF32;
};

Outcome train_on(SessionSettings settings, int ranks, const Way& way, std::int64_t* persistent = nullptr) {
  settings.sharding = way.sharding;
  settings.reduce_each_microbatch = way.each_microbatch;
  settings.parallel = {.overlap_reduction = way.overlap,
                       .overlap_gather = way.overlap,
                       .reshard_after_forward = way.reshard,
                       .reduce_dtype = way.reduce};
  Outcome outcome = train_on_ranks(settings, ranks, {.copies = way.shards == 0 ? 1 : ranks / way.shards},
                                   kSteps, way.microbatches);
  if (persistent) *persistent = outcome.memory.front().persistent;
  return outcome;
}

struct Case {
  const char* name;
  ModelConfig (*model)();
  DType compute;
  double tolerance;  // relative, for losses
};

class DataParallelTraining : public testing::TestWithParam<Case> {};

TEST_P(DataParallelTraining, EqualsOneDeviceOnEveryMesh) {
  SessionSettings settings = tiny_settings(GetParam().compute, GetParam().model());
  settings.step.packed_documents = true;
  settings.step.recompute.full_layers = 1;
  const Outcome one = train_on(settings, 1, {});
  ASSERT_EQ(one.losses.size(), static_cast<std::size_t>(kSteps));
  EXPECT_LT(one.losses.back(), one.losses.front());
  for (const int ranks : {2, 4}) {
    for (const bool each : {false, true}) {
      const Outcome replicated = train_on(settings, ranks, {.each_microbatch = each});
      EXPECT_LE(distance(replicated, one), GetParam().tolerance) << ranks << " ranks";
      for (const Sharding sharding : {Sharding::kStates, Sharding::kGradients, Sharding::kParameters}) {
        EXPECT_EQ(train_on(settings, ranks, {.sharding = sharding, .each_microbatch = each}), replicated)
            << ranks << " ranks, level " << static_cast<int>(sharding) << ", each " << each;
      }
      const Way hybrid{.sharding = Sharding::kParameters, .shards = ranks / 2, .each_microbatch = each};
      EXPECT_EQ(train_on(settings, ranks, hybrid), replicated) << ranks << " ranks, hybrid, each " << each;
    }
  }
}

// Three ranks cannot divide any unit evenly. With eight ranks, some ranks hold no element of a small unit.
// Sums over shard groups of 2^k ranks have the order of sums over all ranks. Therefore hybrid sharding gives
// equal bits.
TEST_P(DataParallelTraining, EqualsOneDeviceOnThreeAndEightRanks) {
  SessionSettings settings = tiny_settings(GetParam().compute, GetParam().model());
  settings.step.packed_documents = true;
  settings.step.recompute.full_layers = 1;
  for (const int ranks : {3, 8}) {
    const int microbatches = 2 * ranks;
    const Outcome one = train_on(settings, 1, {.microbatches = microbatches});
    const Outcome replicated = train_on(settings, ranks, {.microbatches = microbatches});
    EXPECT_LE(distance(replicated, one), GetParam().tolerance) << ranks << " ranks";
    for (const Sharding sharding : {Sharding::kStates, Sharding::kGradients, Sharding::kParameters}) {
      EXPECT_EQ(train_on(settings, ranks, {.microbatches = microbatches, .sharding = sharding}), replicated)
          << ranks << " ranks, level " << static_cast<int>(sharding);
    }
    // Eight ranks are sharded in groups of 2 or 4. Three ranks have no smaller groups, so each rank holds
    // everything.
    for (const Sharding sharding : {Sharding::kStates, Sharding::kGradients, Sharding::kParameters}) {
      const int shards = ranks == 3 ? 1 : sharding == Sharding::kGradients ? 2 : 4;
      const Way hybrid{.microbatches = microbatches, .sharding = sharding, .shards = shards};
      EXPECT_EQ(train_on(settings, ranks, hybrid), replicated)
          << ranks << " ranks, copies of " << shards << ", level " << static_cast<int>(sharding);
    }
  }
}

// With shard groups of three ranks, ranks 0 to 2 and ranks 3 to 5 are summed separately. A sum over all six
// ranks has another order. In any order, a sum of n fp32 numbers is within n u of the exact sum (u: unit
// roundoff). The tolerance is the one for a single device.
TEST(HybridShards, ThreeRanksSumInAnotherOrder) {
  SessionSettings settings = tiny_settings(DType::kF32, tiny_mixture());
  const Outcome one = train_on(settings, 1, {.microbatches = 6});
  const Outcome replicated = train_on(settings, 6, {.microbatches = 6});
  const Outcome hybrid =
      train_on(settings, 6, {.microbatches = 6, .sharding = Sharding::kParameters, .shards = 3});
  EXPECT_LE(distance(replicated, one), 1e-5);
  EXPECT_LE(distance(hybrid, one), 1e-5);
}

// Bits are equal without overlap, with hybrid shards, and with gathered values kept for the backward pass.
// With gradients reduced in bf16, losses differ by the bf16 rounding.
TEST_P(DataParallelTraining, OptionsChangeOnlyTheirDocumentedResults) {
  SessionSettings settings = tiny_settings(GetParam().compute, GetParam().model());
  const Way sharded{.sharding = Sharding::kParameters};
  const Outcome expected = train_on(settings, 4, sharded);
  Way way = sharded;
  way.overlap = false;
  EXPECT_EQ(train_on(settings, 4, way), expected) << "without overlap";
  way = sharded;
  way.reshard = false;
  EXPECT_EQ(train_on(settings, 4, way), expected) << "without resharding after the forward pass";
  for (const Sharding sharding : {Sharding::kStates, Sharding::kGradients, Sharding::kParameters}) {
    way = {.sharding = sharding, .shards = 2};
    EXPECT_EQ(train_on(settings, 4, way), expected) << "hybrid";
    way = {.sharding = sharding, .reduce = DType::kBF16};
    EXPECT_LE(distance(train_on(settings, 4, way), expected), 1e-2) << "reduced in bf16";
  }
}

// Ranks that each hold a part of the weights generate the same text as ranks with all weights. Training is
// unchanged. The memory stays within the measured amount.
TEST_P(DataParallelTraining, ShardedRanksGenerateTextTogether) {
  SessionSettings settings = tiny_settings(GetParam().compute, GetParam().model());
  const Way whole, sharded{.sharding = Sharding::kParameters},
      hybrid{.sharding = Sharding::kParameters, .shards = 2},
      at_once{.sharding = Sharding::kParameters, .overlap = false, .reshard = false};
  const Outcome silent = train_on(settings, 4, sharded);
  settings.sample_capacity = 24;
  const Outcome expected = train_on(settings, 4, whole);
  ASSERT_EQ(expected.texts.front().size(), static_cast<std::size_t>(kSteps) + 1);
  EXPECT_EQ(expected.texts.front().back().size(), 12U);
  EXPECT_NE(expected.texts.front().front(), expected.texts.front().back());
  for (const Way& way : {sharded, hybrid, at_once}) {
    const Outcome outcome = train_on(settings, 4, way);
    EXPECT_EQ(outcome, silent);
    for (std::size_t r = 0; r < 4; ++r) {
      EXPECT_EQ(outcome.texts[r], expected.texts[r]) << r;
      EXPECT_LE(outcome.used[r].stash, outcome.memory[r].stash) << r;
      EXPECT_LE(outcome.used[r].scratch, outcome.memory[r].scratch) << r;
    }
  }
}

// With gradients kept in bf16, every level of sharding gives equal bits, for every way of summing
// microbatches. Sums over two or four ranks are as accurate as the sums of one rank.
TEST(Bf16Gradients, TrainEquallyOnEveryShardingLevel) {
  for (ModelConfig (*model)() : {tiny_llama, tiny_mixture, tiny_deepseek}) {
    SessionSettings settings = tiny_settings(DType::kBF16, model());
    const Outcome wide = train_on(settings, 1, {});
    settings.gradients = DType::kBF16;
    const Outcome one = train_on(settings, 1, {});
    EXPECT_LE(distance(one, wide), 1e-2) << settings.model.family;
    EXPECT_NE(one, wide);
    for (const int ranks : {2, 4}) {
      for (const bool each : {false, true}) {
        const Outcome replicated = train_on(settings, ranks, {.each_microbatch = each});
        EXPECT_LE(distance(replicated, wide), 1e-2) << settings.model.family << ", " << ranks << " ranks";
        for (const Sharding sharding : {Sharding::kStates, Sharding::kGradients, Sharding::kParameters}) {
          EXPECT_EQ(train_on(settings, ranks, {.sharding = sharding, .each_microbatch = each}), replicated)
              << settings.model.family << ", " << ranks << " ranks, level " << static_cast<int>(sharding)
              << ", each " << each;
        }
      }
    }
    const Way hybrid{.sharding = Sharding::kParameters, .shards = 2};
    EXPECT_LE(distance(train_on(settings, 4, hybrid), wide), 1e-2) << "hybrid";
    if (model == tiny_llama) {  // without fp32 gradients, reducing in bf16 changes nothing
      EXPECT_EQ(train_on(settings, 2, {.reduce = DType::kBF16}), train_on(settings, 2, {}));
    }
  }
}

TEST(Bf16Gradients, TrainEquallyOnOtherMeshes) {
  using Shape = engine::MeshShape;
  SessionSettings settings = tiny_settings(DType::kBF16, tiny_mixture());
  settings.model.moe.experts = 4;
  settings.model.moe.training.capacity_factor = 0;  // with capacities, other meshes drop other tokens
  const Outcome wide = train_on(settings, 1, {.microbatches = 4});
  settings.gradients = DType::kBF16;
  for (const Shape& shape : {Shape{.tensor = 2}, {.context = 2}, {.tensor = 2, .expert = 2}, {.expert = 4}}) {
    EXPECT_LE(distance(train_on_ranks(settings, 4, shape, kSteps, 4), wide), 1e-2)
        << "tensor " << shape.tensor << ", context " << shape.context << ", expert " << shape.expert;
  }
}

// Gradients in bf16 save two bytes per parameter that is read in bf16, if gradients keep their memory between
// steps.
TEST(Bf16Gradients, NeedTwoBytesLessPerElementOnSeveralRanks) {
  for (const Sharding sharding : {Sharding::kNone, Sharding::kParameters}) {
    SessionSettings settings = tiny_settings(DType::kBF16, tiny_llama());
    std::int64_t wide = 0, narrow = 0;
    const Way way{.sharding = sharding, .each_microbatch = sharding == Sharding::kParameters};
    train_on(settings, 2, way, &wide);
    settings.gradients = DType::kBF16;
    const Outcome outcome = train_on(settings, 2, way, &narrow);
    EXPECT_EQ(outcome.used.front().stash, outcome.memory.front().stash);
    engine::Rank rank(turbo::make_cpu_device(1));
    const double parameters =
        static_cast<double>(measure_session(rank, settings, builtin_families()).parameters);
    EXPECT_NEAR(static_cast<double>(wide - narrow), sharding == Sharding::kNone ? 2 * parameters : parameters,
                0.05 * parameters);
  }
}

// ---- Optimizers ---------------------------------------------------------------------------------

struct Rule {
  std::string name;
  config::TrainerConfig config;
  double tolerance;  // relative, for losses
};

void PrintTo(const Rule& rule, std::ostream* out) { *out << rule.name; }

class ShardedUpdates : public testing::TestWithParam<Rule> {};

// On every level of sharding, updates equal those of one device, although no rank has a whole matrix. Sums
// over ranks round differently, and the rules amplify this difference. With Lion, the sign of a moment near 0
// may flip. Muon multiplies small singular values by up to 494. Moments with stochastic rounding may round
// the other way if a gradient differs in its last bits. Stochastic rounding sets the tolerance for bf16
// moments. 8-bit moments have four binary digits fewer, so their tolerance is 16 times larger.
TEST_P(ShardedUpdates, EqualOneDeviceOnTwoRanks) {
  SessionSettings settings = tiny_settings(DType::kF32, tiny_mixture());
  const Outcome with_adamw = train_on(settings, 1, {.microbatches = 4});
  settings.optimizer.rules = update_rules_of(GetParam().config);
  const Outcome one = train_on(settings, 1, {.microbatches = 4});
  EXPECT_NE(one, with_adamw);
  const Outcome replicated = train_on(settings, 2, {.microbatches = 4});
  EXPECT_LE(distance(replicated, one), GetParam().tolerance);
  for (const Sharding sharding : {Sharding::kStates, Sharding::kGradients, Sharding::kParameters}) {
    EXPECT_EQ(train_on(settings, 2, {.microbatches = 4, .sharding = sharding}), replicated)
        << "level " << static_cast<int>(sharding);
  }
  settings.compute = DType::kBF16;
  const Outcome narrow = train_on(settings, 2, {.microbatches = 4});
  EXPECT_EQ(train_on(settings, 2, {.microbatches = 4, .sharding = Sharding::kParameters}), narrow) << "bf16";
  settings.optimizer.split_masters = true;
  for (const Sharding sharding :
       {Sharding::kNone, Sharding::kStates, Sharding::kGradients, Sharding::kParameters}) {
    EXPECT_EQ(train_on(settings, 2, {.microbatches = 4, .sharding = sharding}), narrow)
        << "split masters, level " << static_cast<int>(sharding);
  }
}

// With hybrid shards, split masters give the bits of fp32 masters. This includes experts and latent
// attention, and routers, which are read in fp32.
TEST(SplitMasters, EqualFp32MastersOnHybridShards) {
  for (ModelConfig (*model)() : {tiny_llama, tiny_mixture, tiny_deepseek}) {
    SessionSettings settings = tiny_settings(DType::kBF16, model());
    const Way hybrid{.sharding = Sharding::kParameters, .shards = 2};
    const Outcome wide = train_on(settings, 4, hybrid);
    settings.optimizer.split_masters = true;
    EXPECT_EQ(train_on(settings, 4, hybrid), wide) << settings.model.family;
  }
}

// For any number of ranks, shards end at borders between blocks of 8-bit moments. With three ranks, no unit
// divides evenly. With eight ranks, a small parameter unit has fewer blocks of moments than ranks, so some
// ranks have no block. The memory plan counts all bytes of the shards.
TEST(MomentsInEightBits, TrainEquallyOnThreeAndEightRanks) {
  for (ModelConfig (*model)() : {tiny_llama, tiny_deepseek}) {
    SessionSettings settings = tiny_settings(DType::kBF16, model());
    settings.optimizer.rules = update_rules_of({.exp_avg_dtype = "fp8", .exp_avg_sq_dtype = "fp8"});
    settings.optimizer.split_masters = true;
    for (const int ranks : {3, 8}) {
      const Outcome replicated = train_on(settings, ranks, {.microbatches = ranks});
      for (const Sharding sharding : {Sharding::kStates, Sharding::kGradients, Sharding::kParameters}) {
        const Outcome sharded = train_on(settings, ranks, {.microbatches = ranks, .sharding = sharding});
        EXPECT_EQ(sharded, replicated) << ranks << " ranks, level " << static_cast<int>(sharding);
        for (std::size_t r = 0; r < sharded.used.size(); ++r) {
          EXPECT_EQ(sharded.used[r].persistent, sharded.memory[r].persistent) << r;
          EXPECT_EQ(sharded.used[r].stash, sharded.memory[r].stash) << r;
        }
      }
      if (ranks == 3) continue;
      EXPECT_EQ(train_on(settings, 8, {.microbatches = 8, .sharding = Sharding::kParameters, .shards = 4}),
                replicated)
          << "hybrid";
    }
  }
}

// An update with 8-bit moments differs from an update with fp32 moments by 16 % (derived in turbo_adamw's
// test). The decrease of the loss over twenty steps therefore differs by at most a fifth.
TEST(MomentsInEightBits, LearnAsWellAsInFp32) {
  for (ModelConfig (*model)() : {tiny_llama, tiny_mixture}) {
    SessionSettings settings = tiny_settings(DType::kF32, model());
    const Outcome wide = train_on(settings, 1, {});
    settings.optimizer.rules = update_rules_of({.exp_avg_dtype = "fp8", .exp_avg_sq_dtype = "fp8"});
    const Outcome narrow = train_on(settings, 1, {});
    EXPECT_NE(narrow, wide);
    ASSERT_EQ(narrow.losses.size(), wide.losses.size());
    const double gained = wide.losses.front() - wide.losses.back();
    EXPECT_GT(gained, 0);
    for (std::size_t i = 0; i < wide.losses.size(); ++i)
      EXPECT_NEAR(narrow.losses[i], wide.losses[i], 0.2 * gained) << i;
  }
}

// Each moment takes one byte instead of four bytes, plus the scales. The matrices of this model consist of
// whole blocks.
TEST(MomentsInEightBits, NeedSixBytesLessPerElement) {
  ModelConfig model = tiny_llama();
  model.hidden = model.ffn = 256;
  model.head_dim = 64;
  SessionSettings settings = tiny_settings(DType::kBF16, model);
  const auto measured = [&] {
    engine::Rank rank(turbo::make_cpu_device(1));
    return measure_session(rank, settings, builtin_families());
  };
  const StepMeasurement wide = measured();
  settings.optimizer.rules = update_rules_of({.exp_avg_dtype = "fp8", .exp_avg_sq_dtype = "fp8"});
  const StepMeasurement narrow = measured();
  const auto parameters = static_cast<double>(wide.parameters);
  EXPECT_NEAR(static_cast<double>(wide.memory.persistent - narrow.memory.persistent),
              (8 - 2 * (1 + 1.0 / 64)) * parameters, 0.01 * parameters);
  EXPECT_EQ(wide.state_bytes, 8 * wide.parameters);
  EXPECT_EQ(narrow.state_bytes, 4 * wide.parameters) << "checkpoints store the moments in bf16";
}

INSTANTIATE_TEST_SUITE_P(
    Rules, ShardedUpdates,
    testing::Values(Rule{"adamw_bf16_moments", {.exp_avg_dtype = "bf16", .exp_avg_sq_dtype = "bf16"}, 2e-3},
                    Rule{"adamw_fp8_moments", {.exp_avg_dtype = "fp8", .exp_avg_sq_dtype = "fp8"}, 3.2e-2},
                    Rule{"adamw_fp8_first_moment", {.exp_avg_dtype = "fp8"}, 3.2e-2},
                    Rule{"muon_fp8_moments",
                         {.optimizer = "muon",
                          .muon_fp32_matmul_prec = "high",
                          .exp_avg_dtype = "fp8",
                          .exp_avg_sq_dtype = "fp8"},
                         3.2e-2},
                    Rule{"sgd", {.optimizer = "sgd"}, 1e-5}, Rule{"lion", {.optimizer = "lion"}, 1e-3},
                    Rule{"muon", {.optimizer = "muon", .muon_fp32_matmul_prec = "high"}, 1e-4},
                    Rule{"muon_lion",
                         {.optimizer = "muon",
                          .muon_extra_scale_factor = 0.2,
                          .muon_fp32_matmul_prec = "high",
                          .muon_scalar_optimizer = "lion"},
                         1e-3}),
    [](const auto& rule) { return rule.param.name; });

// Sharded memory is inversely proportional to the number of ranks; the rest (tables, scalars) is constant.
TEST(DataParallelMemory, ShardedStatesShrinkAsOneOverTheRanks) {
  const SessionSettings settings = tiny_settings(DType::kBF16, tiny_llama());
  std::int64_t whole = 0, half = 0, quarter = 0;
  train_on(settings, 1, {}, &whole);
  train_on(settings, 2, {.sharding = Sharding::kParameters}, &half);
  train_on(settings, 4, {.sharding = Sharding::kParameters}, &quarter);
  const double rest = static_cast<double>(whole - 2 * (whole - half));
  EXPECT_NEAR(static_cast<double>(quarter) - rest, (static_cast<double>(whole) - rest) / 4,
              0.02 * static_cast<double>(whole));
  EXPECT_LT(rest, 0.05 * static_cast<double>(whole));
}

// Split masters save two bytes per stored parameter that is read in bf16, with and without sharding.
TEST(DataParallelMemory, SplitMastersNeedTwoBytesLessPerElement) {
  for (const int ranks : {1, 4}) {
    SessionSettings settings = tiny_settings(DType::kBF16, tiny_llama());
    const Way way{.sharding = Sharding::kStates};
    std::int64_t wide = 0, split = 0;
    train_on(settings, ranks, way, &wide);
    settings.optimizer.split_masters = true;
    train_on(settings, ranks, way, &split);
    engine::Rank rank(turbo::make_cpu_device(1));
    const double parameters =
        static_cast<double>(measure_session(rank, settings, builtin_families()).parameters);
    EXPECT_NEAR(static_cast<double>(wide - split), 2 * parameters / ranks, 0.05 * parameters) << ranks;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DataParallelTraining,
                         testing::Values(Case{"llama", tiny_llama, DType::kF32, 1e-5},
                                         Case{"llama_bf16", tiny_llama, DType::kBF16, 2e-3},
                                         Case{"lora", tiny_lora, DType::kF32, 1e-5},
                                         Case{"lora_bf16", tiny_lora, DType::kBF16, 2e-3},
                                         Case{"lora_dropout", tiny_lora_dropout, DType::kF32, 1e-5},
                                         Case{"lora_mixture", tiny_lora_mixture, DType::kF32, 1e-5},
                                         Case{"mixture", tiny_mixture, DType::kF32, 1e-5},
                                         Case{"mixture_bf16", tiny_mixture, DType::kBF16, 2e-3},
                                         Case{"deepseek", tiny_deepseek, DType::kF32, 1e-5},
                                         Case{"deepseek_bf16", tiny_deepseek, DType::kBF16, 2e-3}),
                         [](const auto& c) { return std::string(c.param.name); });

}  // namespace
}  // namespace primus::test
