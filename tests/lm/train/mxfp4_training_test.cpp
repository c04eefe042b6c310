// Tests of linear layers and experts in MXFP4: which products use MXFP4, that no execution option changes the
// result of a step, and weights that oscillate. tests/cli/fp4_test.cpp checks that a model learns.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>

#include "lm/train/precision_training.h"

namespace primus::test {
namespace {

using engine::PrecisionRecipe;
using turbo::KernelId;

constexpr PrecisionRecipe kMxfp4{.fp4 = true};
constexpr PrecisionRecipe kAtRandom{.fp4 = true, .at_random = true};

SessionSettings damped(const OscillationSettings& oscillation, const ModelConfig& model = tiny_llama()) {
  SessionSettings settings = settings_with(kMxfp4, model);
  settings.optimizer.oscillation = oscillation;
  settings.optimizer.rules = without_oscillation(settings.optimizer.rules, kMxfp4, oscillation);
  return settings;
}

// Linear layers and experts of blocks use MXFP4. Each of the four blocks has four matrices. Each matrix has
// three products per microbatch, and a step has three microbatches. In a mixture, two matrices belong to
// attention and two to experts.
TEST(Mxfp4Training, TheBlocksLinearLayersAndExpertsUseFp4) {
  const auto rounded = [](const PrecisionRecipe& recipe, const ModelConfig& model) {
    const turbo::Meter plain = kernels_of(settings_with({}, model));
    turbo::Meter meter = kernels_of(settings_with(recipe, model));
    EXPECT_EQ(meter.total_flops(), plain.total_flops());
    return meter[KernelId::kRoundMxfp4].calls;
  };
  EXPECT_EQ(rounded({}, tiny_llama()), 0);
  EXPECT_EQ(rounded(kMxfp4, tiny_llama()), 2 * 4 * 4 * 3 * 3);
  EXPECT_EQ(rounded({.fp4 = true, .first = 1, .last = 2, .layers = 4}, tiny_llama()), 2 * 4 * 3 * 3);
  EXPECT_EQ(rounded(kMxfp4, tiny_mixture()), 2 * 4 * 4 * 3 * 3);
}

TEST(Mxfp4Training, AStepUsesTheMeasuredMemory) {
  for (const ModelConfig& model : {tiny_llama(), tiny_mixture()})
    expect_measured(train(settings_with(kMxfp4, model)));
  expect_measured(train(settings_with(kAtRandom)));
  expect_measured(train(damped({.period = 2})));
}

TEST(Mxfp4Training, ResultsAreNearBf16AndBf16BlocksAreExact) {
  for (const ModelConfig& model : {tiny_llama(), tiny_mixture(), tiny_deepseek()}) {
    const Outcome plain = train(settings_with({}, model)), fp4 = train(settings_with(kMxfp4, model));
    EXPECT_FALSE(fp4 == plain);
    EXPECT_LE(distance(fp4, plain), 0.1);
    EXPECT_TRUE(train(settings_with({.fp4 = true, .last = 0, .layers = model.layers}, model)) == plain ||
                model.mtp.layers > 0);
  }
}

TEST(Mxfp4Training, RecomputationAndDeferredWeightGradientsChangeNoBit) {
  for (const PrecisionRecipe& recipe : {kMxfp4, kAtRandom})
    expect_no_bit_changed_by_the_order_of_work(settings_with(recipe));
}

TEST(Mxfp4Training, TheSeedDeterminesHowGradientsAreRounded) {
  const Outcome nearest = train(settings_with(kMxfp4)), random = train(settings_with(kAtRandom));
  EXPECT_EQ(nearest.losses[0], random.losses[0]);  // the forward products are equal
  EXPECT_FALSE(nearest == random);
  EXPECT_TRUE(random == train(settings_with(kAtRandom)));
  SessionSettings other = settings_with(kAtRandom);
  other.step.seed = 99;
  EXPECT_FALSE(random == train(other));
}

// Each microbatch has its own blocks, so rounding does not depend on the number of ranks. Sums of gradients
// differ in their last bits.
TEST(Mxfp4Training, TwoRanksEqualOneRankAndShardingLevelsHaveTheSameBits) {
  for (const SessionSettings& settings : {settings_with(kMxfp4), settings_with(kAtRandom),
                                          damped({.start_step = 1, .period = 2, .ratio = 2})}) {
    // The tolerance covers nearly equal values that round to different, neighbouring FP4 values.
    expect_two_ranks_train_as_one(settings, 4, 5e-3);
  }
}

// The sizes divide into whole blocks for two ranks, and each context rank has whole blocks of tokens (two
// slices of 32), so both ranks use the scales and random bits of a single rank. Sums of gradients differ in
// their last bits. In fp32, this changes no FP4 value. In bf16 it changes some, in an order that depends on
// the CPU.
TEST(Mxfp4Training, TensorAndContextRanksEqualOneRank) {
  ModelConfig model = tiny_llama();
  model.layers = 2, model.hidden = 64, model.heads = 4, model.kv_heads = 2, model.head_dim = 32,
  model.ffn = 128, model.vocab = 96;
  for (const PrecisionRecipe& recipe : {kMxfp4, kAtRandom}) {
    SessionSettings settings = settings_with(recipe, model);
    settings.step.sequence = 128;
    settings.compute = DType::kF32;
    const Outcome one = train_on_ranks(settings, 1, kAlone, 3, 2);
    for (const engine::MeshShape& shape : {engine::MeshShape{.tensor = 2}, engine::MeshShape{.context = 2}}) {
      const Outcome two = train_on_ranks(settings, 2, shape, 3, 2);
      EXPECT_LE(distance(two, one), 1e-5);
      expect_measured(two);
    }
  }
}

TEST(Mxfp4Training, ExpertRanksEqualOneRankUpToTokenBlocks) {
  ModelConfig model = tiny_mixture();
  model.moe.experts = 4;
  model.moe.training = {};
  const Outcome one = train_on_ranks(settings_with(kMxfp4, model), 1, kAlone, 3, 2);
  const Outcome two = train_on_ranks(settings_with(kMxfp4, model), 2, {.expert = 2}, 3, 2);
  EXPECT_LE(distance(two, one), 0.02);
  expect_measured(two);
}

// ---- Oscillation --------------------------------------------------------------------------------

// Returns the MXFP4 value of each weight, for stacked matrices of [rows, cols] with blocks of 32 x 32.
std::vector<float> numbers_of(const std::vector<float>& masters, std::int64_t rows, std::int64_t cols) {
  constexpr std::array<double, 8> kNumbers = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const auto all = static_cast<std::int64_t>(masters.size()) / cols;
  std::vector<float> out(masters.size());
  for (std::int64_t matrix = 0; matrix < all; matrix += rows) {
    for (std::int64_t r = 0; r < rows; r += 32) {
      for (std::int64_t c = 0; c < cols; c += 32) {
        std::vector<std::size_t> places;
        double largest = 0;
        for (std::int64_t i = r; i < std::min(r + 32, rows); ++i) {
          for (std::int64_t j = c; j < std::min(c + 32, cols); ++j) {
            places.push_back(static_cast<std::size_t>((matrix + i) * cols + j));
            largest = std::max(largest, std::abs(static_cast<double>(static_cast<float>(
                                            turbo::working_value(masters[places.back()])))));
          }
        }
        int exponent = std::ilogb(largest);
        if (largest >= std::ldexp(1.75, exponent)) ++exponent;
        const double scale = std::ldexp(1.0, exponent - 2);
        for (const std::size_t place : places) {
          const double x =
              static_cast<double>(static_cast<float>(turbo::working_value(masters[place]))) / scale;
          std::size_t best = 0;
          for (std::size_t code = 1; code < kNumbers.size(); ++code) {
            const double here = std::abs(kNumbers[code] - std::abs(x)),
                         before = std::abs(kNumbers[best] - std::abs(x));
            if (here < before || (here == before && code % 2 == 0)) best = code;
          }
          out[place] = static_cast<float>(std::copysign(kNumbers[best], x) * scale);
        }
      }
    }
  }
  return out;
}

// Returns the shapes of the ranks' parts of weights with FP4 products, with the names of Outcome::weights.
std::map<std::string, Shape> watched_shapes(const SessionSettings& settings, int ranks,
                                            const engine::MeshShape& shape) {
  std::map<std::string, Shape> shapes;
  std::mutex mutex;
  on_ranks(ranks, shape, [&](engine::Rank& rank) {
    rank.reserve(measure_session(rank, settings, builtin_families()).memory);
    TrainingSession session(rank, settings, builtin_families());
    const std::lock_guard lock(mutex);
    for (const engine::Parameter& p : session.store().parameters())
      if (kMxfp4.is_fp4(p)) shapes[weights_name(p)] = p.shape;
  });
  return shapes;
}

// Tests the window of steps 3, 4 and 5. The weights before and after each step come from runs without
// damping.
void expect_reference(const ModelConfig& model, bool split, int ranks = 1,
                      const engine::MeshShape& shape = {}) {
  constexpr float kRatio = 2;
  SessionSettings plain = settings_with(kMxfp4, model),
                  watched = damped({.start_step = 2, .period = 3, .ratio = kRatio}, model);
  plain.optimizer.split_masters = watched.optimizer.split_masters = split;
  const auto run = [&](const SessionSettings& settings, int steps) {
    return train_on_ranks(settings, ranks, shape, steps, 2);
  };
  std::vector<Outcome> after;
  for (const int steps : {2, 3, 4, 5}) after.push_back(run(plain, steps));
  EXPECT_TRUE(run(watched, 4) == after[2]);
  const Outcome actual = run(watched, 5);
  expect_measured(actual);
  EXPECT_EQ(actual.losses, after[3].losses);
  std::size_t snapped = 0, all = 0;
  std::map<std::string, std::vector<float>> expected = after[3].weights;
  for (const auto& [name, extents] : watched_shapes(plain, ranks, shape)) {
    const std::int64_t cols = extents[extents.rank() - 1], rows = extents[extents.rank() - 2];
    std::vector<float>& weights = expected.at(name);
    std::vector<float> moved(weights.size()), jumped(weights.size()), number;
    for (std::size_t s = 0; s + 1 < after.size(); ++s) {
      const std::vector<float>&from = after[s].weights.at(name), &to = after[s + 1].weights.at(name);
      const std::vector<float> before = numbers_of(from, rows, cols);
      number = numbers_of(to, rows, cols);
      for (std::size_t i = 0; i < moved.size(); ++i) {
        moved[i] += std::abs(to[i] - from[i]);
        jumped[i] += std::abs(number[i] - before[i]);
      }
    }
    for (std::size_t i = 0; i < moved.size(); ++i) {
      if (moved[i] > 0 && jumped[i] >= kRatio * moved[i]) weights[i] = number[i], ++snapped;
    }
    all += moved.size();
  }
  EXPECT_TRUE(actual.weights == expected);
  EXPECT_GT(snapped, all / 1000);
  EXPECT_LT(snapped, all / 2);
}

TEST(Mxfp4Training, OnlyOscillatingWeightsAreSetToFp4Values) {
  for (const bool split : {false, true}) {
    expect_reference(tiny_llama(), split);
    expect_reference(tiny_mixture(), split);
  }
}

// Each rank applies the rule to its part of a matrix. The rule uses the FP4 values that the rank's products
// use.
TEST(Mxfp4Training, OscillatingWeightsAreSetOnTensorAndExpertRanks) {
  expect_reference(tiny_llama(), false, 2, {.tensor = 2});
  ModelConfig mixture = tiny_mixture();
  mixture.moe.experts = 4;
  expect_reference(mixture, true, 2, {.expert = 2});
}

}  // namespace
}  // namespace primus::test
