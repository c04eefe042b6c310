#include "lm/decode/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "base/error.h"

namespace primus {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::map<std::int32_t, int> draw(const std::vector<float>& logits, const SamplingSettings& settings,
                                 int count) {
  std::map<std::int32_t, int> result;
  for (int i = 0; i < count; ++i) ++result[sample_token(logits, settings, i)];
  return result;
}

TEST(Sampler, ZeroTemperatureTakesTheFirstOfTheMostProbableTokens) {
  EXPECT_EQ(sample_token(std::vector<float>{0, 3, 1, 3}, {.temperature = 0}, 7), 1);
}

TEST(Sampler, DrawsInProportionToProbability) {
  // Probabilities 1/2, 1/4, 1/8 and 1/8. Temperature 2 takes the square root of their ratios.
  const std::vector<float> logits{std::log(4.0F), std::log(2.0F), 0, 0};
  constexpr int kCount = 20000;
  auto check = [&](const SamplingSettings& settings, const std::vector<double>& expected) {
    auto counts = draw(logits, settings, kCount);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double deviation = std::sqrt(expected[i] * (1 - expected[i]) * kCount);
      EXPECT_NEAR(counts[static_cast<std::int32_t>(i)], expected[i] * kCount, 4.5 * deviation) << i;
    }
  };
  check({.temperature = 1}, {0.5, 0.25, 0.125, 0.125});
  const double total = 2 + std::sqrt(2) + 2;
  check({.temperature = 2}, {2 / total, std::sqrt(2) / total, 1 / total, 1 / total});
  check({.temperature = 1, .top_k = 2}, {2.0 / 3, 1.0 / 3, 0, 0});
  check({.temperature = 1, .top_p = 0.75}, {2.0 / 3, 1.0 / 3, 0, 0});
  check({.temperature = 1, .top_k = 3, .top_p = 0.99}, {4.0 / 7, 2.0 / 7, 1.0 / 7, 0});
  check({.temperature = 1, .top_p = 0.1}, {1, 0, 0, 0});
}

TEST(Sampler, TopPStopsWhereTheSumReachesIt) {
  // Two tokens have probability 1/2, and p is 1/2. These numbers are exact in binary, so one token reaches p.
  EXPECT_EQ(draw({0, 0}, {.temperature = 1, .top_p = 0.5}, 300).size(), 1U);
  EXPECT_EQ(draw({0, 0, 0, 0}, {.temperature = 1, .top_k = 2, .top_p = 0.5}, 300).size(), 1U);
  EXPECT_EQ(draw({0, 0, 0, 0}, {.temperature = 1, .top_p = 0.75}, 300).size(), 3U);
}

// Top-p is relative to the probability that top-k keeps: 0.57 of 0.7 is less than the first token's 0.4.
TEST(Sampler, TopPIsAFractionOfTheTopKTokens) {
  std::vector<float> logits{std::log(0.4F), std::log(0.2F), std::log(0.1F)};
  logits.resize(33, std::log(0.01F));
  EXPECT_EQ(draw(logits, {.temperature = 1, .top_k = 3, .top_p = 0.57}, 300).size(), 1U);
  EXPECT_EQ(draw(logits, {.temperature = 1, .top_p = 0.57}, 300).size(), 2U);
}

TEST(Sampler, SortsOnlyTheTokensThatTopPNeeds) {
  // Probabilities are nearly uniform, so top-p keeps half of the tokens, more than the sampler sorts at
  // first.
  std::vector<float> logits(1000);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = -1e-4F * static_cast<float>(i);
  const auto counts = draw(logits, {.temperature = 1, .top_p = 0.5}, 5000);
  EXPECT_LT(counts.rbegin()->first, 500);
  EXPECT_GT(counts.rbegin()->first, 450);
}

TEST(Sampler, NeverDrawsTheImpossible) {
  const std::vector<float> logits{-kInfinity, 0, -kInfinity, 0};
  for (const auto& settings :
       {SamplingSettings{.temperature = 5}, SamplingSettings{.temperature = 5, .top_k = 3}}) {
    const auto counts = draw(logits, settings, 500);
    EXPECT_FALSE(counts.contains(0));
    EXPECT_FALSE(counts.contains(2));
    EXPECT_EQ(counts.size(), 2U);
  }
}

TEST(Sampler, TheDrawIsAFunctionOfSeedAndPosition) {
  const std::vector<float> logits(50, 0);
  auto series = [&](std::uint64_t seed) {
    std::vector<std::int32_t> ids;
    for (int i = 0; i < 30; ++i) ids.push_back(sample_token(logits, {.temperature = 1, .seed = seed}, i));
    return ids;
  };
  EXPECT_EQ(series(1), series(1));
  EXPECT_NE(series(1), series(2));
}

TEST(Sampler, TopTokensAreEnough) {
  std::vector<float> logits;
  for (int i = 0; i < 300; ++i) logits.push_back(static_cast<float>(i * 37 % 101) * 0.1F);  // with ties
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](auto a, auto b) { return logits[a] > logits[b]; });
  ids.resize(20);
  std::vector<float> values;
  for (const std::int32_t id : ids) values.push_back(logits[id]);
  for (const SamplingSettings& settings :
       {SamplingSettings{.temperature = 0}, SamplingSettings{.temperature = 2, .top_k = 20},
        SamplingSettings{.temperature = 1, .top_k = 7, .top_p = 0.8}}) {
    EXPECT_LE(top_k_needed(settings), 20);
    for (int i = 0; i < 200; ++i)
      EXPECT_EQ(sample_token(NextLogits{values, ids}, settings, i), sample_token(logits, settings, i));
  }
  EXPECT_EQ(top_k_needed({.temperature = 1, .top_p = 0.5}), 0);
}

TEST(Sampler, RefusesLogitsWithoutADistribution) {
  const SamplingSettings settings;
  EXPECT_THROW(sample_token(std::vector<float>{0, std::nanf("")}, settings, 0), Error);
  EXPECT_THROW(sample_token(std::vector<float>{0, kInfinity}, settings, 0), Error);
  EXPECT_THROW(sample_token(std::vector<float>{-kInfinity, -kInfinity}, settings, 0), Error);
  EXPECT_THROW(sample_token(std::vector<float>{}, settings, 0), Error);
}

TEST(Sampler, ChecksItsSettings) {
  SamplingSettings{}.check();
  EXPECT_THROW(SamplingSettings{.temperature = -1}.check(), Error);
  EXPECT_THROW(SamplingSettings{.temperature = std::nan("")}.check(), Error);
  EXPECT_THROW(SamplingSettings{.top_k = -1}.check(), Error);
  EXPECT_THROW(SamplingSettings{.top_p = 0}.check(), Error);
  EXPECT_THROW(SamplingSettings{.top_p = 1.5}.check(), Error);
}

}  // namespace
}  // namespace primus
