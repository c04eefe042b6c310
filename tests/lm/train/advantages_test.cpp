// Tests advantages of answers with missing rewards, equal rewards and single answers. tests/lm/verify
// compares advantages with TRL.
#include "lm/train/objectives/rules/advantages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace primus {
namespace {

using Rewards = std::vector<std::optional<double>>;
using testing::DoubleNear;
using testing::ElementsAre;

TEST(Advantages, AreDividedByTheDeviationOfTheGroup) {
  const Advantages a = compute_advantages({.num_generations = 2}, Rewards{1, 3, 5, 5}, 1);
  const double one = 1 / (std::sqrt(2.0) + 1e-4);
  EXPECT_THAT(a.values, ElementsAre(DoubleNear(-one, 1e-12), DoubleNear(one, 1e-12), 0, 0));
  EXPECT_EQ(a.zero_deviation, 0.5);
  EXPECT_EQ(a.reward.mean, 3.5);
}

TEST(Advantages, MissingRewardsLeaveTheBaseline) {
  const AdvantageSettings none{.num_generations = 3, .scale_rewards = "none"};
  // The second answer has no reward; the third has one of two.
  const Rewards rewards = {1, 2, std::nullopt, std::nullopt, 5, std::nullopt};
  const Advantages a = compute_advantages(none, rewards, 2);
  EXPECT_THAT(a.values, ElementsAre(-1, 0, 1));
  EXPECT_EQ(a.functions[0].mean, 3);
  EXPECT_EQ(a.functions[1].mean, 2);
  EXPECT_TRUE(std::isnan(a.functions[1].deviation));
  const Advantages rloo =
      compute_advantages({.num_generations = 3, .leave_one_out = true}, Rewards{1, std::nullopt, 4}, 1);
  EXPECT_THAT(rloo.values, ElementsAre(-3, 0, 3));
  // A group with one scored answer has no baseline.
  EXPECT_THAT(
      compute_advantages({.num_generations = 2, .leave_one_out = true}, Rewards{1, std::nullopt}, 1).values,
      ElementsAre(0, 0));
  EXPECT_THAT(compute_advantages({.num_generations = 2}, Rewards{std::nullopt, std::nullopt}, 1).values,
              ElementsAre(0, 0));
}

TEST(Advantages, GroupsOfOneHaveNoAdvantage) {
  EXPECT_THAT(compute_advantages({.num_generations = 1}, Rewards{1, 7}, 1).values, ElementsAre(0, 0));
}

TEST(Advantages, FunctionsAreNormalizedBeforeTheSum) {
  const AdvantageSettings settings{.num_generations = 2, .multi_objective_aggregation = "normalize_then_sum"};
  // Both functions prefer the first answer, with different scales.
  const Advantages a = compute_advantages(settings, Rewards{100, 0.2, 0, 0.1}, 2);
  EXPECT_NEAR(a.values[0], 1 / std::sqrt(2.0), 2e-3);
  EXPECT_NEAR(a.values[0], -a.values[1], 1e-12);
}

TEST(Advantages, NameTheGroupsWithDifferentRewards) {
  const Rewards rewards = {1, 3, 5, 5, std::nullopt, 2, std::nullopt, std::nullopt};
  const std::vector<bool> expected = {true, false, false, false};
  for (const char* scale : {"group", "batch", "none"})
    EXPECT_EQ(compute_advantages({.num_generations = 2, .scale_rewards = scale}, rewards, 1).varied,
              expected);
  EXPECT_EQ(compute_advantages({.num_generations = 2, .leave_one_out = true}, rewards, 1).varied, expected);
  // The sums of both groups are equal, but the functions of the first group differ.
  const Rewards two = {1, 0, 0, 1, 1, 0, 1, 0};
  AdvantageSettings settings{.num_generations = 2};
  EXPECT_EQ(compute_advantages(settings, two, 2).varied, (std::vector<bool>{false, false}));
  settings.multi_objective_aggregation = "normalize_then_sum";
  EXPECT_EQ(compute_advantages(settings, two, 2).varied, (std::vector<bool>{true, false}));
}

TEST(Advantages, RlooSubtractsTheDivergence) {
  const std::vector<double> kl = {2, 0};
  const AdvantageSettings settings{.num_generations = 2,
                                   .leave_one_out = true,
                                   .beta = 0.5,
                                   .reward_clip_range = std::array<double, 2>{0, 3}};
  EXPECT_THAT(compute_advantages(settings, Rewards{10, 1}, 1, kl).values, ElementsAre(1, -1));
}

TEST(Advantages, WrongSettingsAreRefused) {
  const Rewards rewards = {1, 2};
  EXPECT_THROW(compute_advantages({.num_generations = 2, .scale_rewards = "all"}, rewards, 1), Error);
  EXPECT_THROW(compute_advantages({.num_generations = 2, .reward_weights = {1, 1}}, rewards, 1), Error);
  EXPECT_THROW(compute_advantages({.num_generations = 2, .reward_weights = {0}}, rewards, 1), Error);
  EXPECT_THROW(compute_advantages({.num_generations = 4}, rewards, 1), Error);
  EXPECT_THROW(check_advantages({.num_generations = 1, .leave_one_out = true}), Error);
  EXPECT_THROW(check_advantages({.beta = 0.1}), Error);
  EXPECT_THROW(check_advantages({.leave_one_out = true, .scale_rewards = "none"}), Error);
  EXPECT_THROW(
      check_advantages({.scale_rewards = "none", .multi_objective_aggregation = "normalize_then_sum"}),
      Error);
}

}  // namespace
}  // namespace primus
