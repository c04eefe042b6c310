// Tests which groups dynamic sampling generates again, for which prompts, and what it reports.
// rollout_test.cpp and rollout_run_test.cpp test it in training steps and in whole runs.
#include "lm/train/objectives/rollouts/dynamic_sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "base/error.h"

namespace primus {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Returns the advantages of groups of 4 answers; `varied`: whether each group has different rewards.
Advantages attempt_of(const std::vector<bool>& varied, double mean = 0.5) {
  Advantages advantages;
  advantages.values.resize(4 * varied.size());
  advantages.reward.mean = mean;
  advantages.varied = varied;
  return advantages;
}

std::int64_t saved(const DynamicSampling& sampling, std::int64_t done) {
  const TensorSource source = sampling.state(done);
  std::int64_t number = -1;
  std::vector<std::byte> bytes(sizeof number);
  source.fill(0, bytes);
  std::memcpy(&number, bytes.data(), sizeof number);
  return number;
}

TEST(DynamicSampling, GroupsWithEqualRewardsAreGeneratedAgain) {
  DynamicSampling sampling({.groups = 3, .attempts = 4});
  sampling.begin(1);
  EXPECT_EQ(sampling.take(), 0);
  EXPECT_EQ(sampling.take(), 1);
  EXPECT_EQ(sampling.take(), 2);
  const std::vector<std::int64_t> all = {0, 1, 2}, equal = {0, 2}, last = {2};
  EXPECT_EQ(sampling.discard(all, attempt_of({false, true, false}, 0.25), 12, ""), equal);
  EXPECT_EQ(sampling.take(), 3);
  EXPECT_EQ(sampling.take(), 4);
  EXPECT_EQ(sampling.discard(equal, attempt_of({true, false}, 1), 8, ""), last);
  EXPECT_EQ(sampling.take(), 5);
  EXPECT_THAT(sampling.discard(last, attempt_of({true}, 0), 4, ""), IsEmpty());
  sampling.finish();
  const auto metrics = sampling.metrics();
  const std::map<std::string, double> named(metrics.begin(), metrics.end());
  EXPECT_EQ(named.at("dynamic_sampling/batches"), 3);
  EXPECT_EQ(named.at("dynamic_sampling/discarded"), 0.5);
  EXPECT_EQ(named.at("dynamic_sampling/reward"), (12 * 0.25 + 8) / 24);
  EXPECT_EQ(saved(sampling, 1), 6);
  sampling.begin(2);
  EXPECT_EQ(sampling.take(), 6);
}

TEST(DynamicSampling, AnInterruptedStepBeginsWithTheSamePrompts) {
  DynamicSampling sampling({.groups = 2, .attempts = 4, .iterations = 3});
  // Steps 1 and 4 generated two groups each.
  EXPECT_EQ(saved(sampling, 5), 4);
  for (int i = 0; i < 2; ++i) {
    sampling.begin(7);
    EXPECT_EQ(sampling.take(), 4);
  }
  EXPECT_EQ(saved(sampling, 6), 4);
}

TEST(DynamicSampling, TheLastAttemptKeepsGroupsWithEqualRewards) {
  std::vector<std::string> warnings;
  DynamicSampling sampling({.groups = 2, .attempts = 2, .warn = [&warnings](const std::string& text) {
                              warnings.push_back(text);
                            }});
  const std::vector<std::int64_t> all = {0, 1}, second = {1};
  for (const std::int64_t step : {1, 2}) {
    sampling.begin(step);
    EXPECT_EQ(sampling.discard(all, attempt_of({true, false}), 8, ""), second);
    EXPECT_THAT(sampling.discard(second, attempt_of({false}), 4, ""), IsEmpty());
  }
  EXPECT_THAT(warnings, ElementsAre(AllOf(HasSubstr("step 1: 1 of 2 groups"), HasSubstr("2 attempts"))));
}

TEST(DynamicSampling, OneAttemptGeneratesNothingAgain) {
  std::string warning;
  DynamicSampling sampling(
      {.groups = 2, .attempts = 1, .warn = [&warning](const std::string& text) { warning = text; }});
  const std::vector<std::int64_t> all = {0, 1};
  sampling.begin(1);
  EXPECT_THAT(sampling.discard(all, attempt_of({true, false}), 8, ""), IsEmpty());
  EXPECT_THAT(warning, HasSubstr("after 1 attempt (dynamic_sampling_max_batches)"));
}

TEST(DynamicSampling, AStepWithoutDifferentRewardsEndsTheRun) {
  DynamicSampling sampling({.groups = 2, .attempts = 2});
  const std::vector<std::int64_t> all = {0, 1};
  sampling.begin(9);
  EXPECT_EQ(sampling.discard(all, attempt_of({false, false}), 8, ""), all);
  try {
    sampling.discard(all, attempt_of({false, false}), 0, " (low: the program failed)");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.render(),
                AllOf(HasSubstr("step 9: each of the 4 groups"), HasSubstr("2 attempts"),
                      HasSubstr("low: the program failed"), HasSubstr("increase num_generations")));
  }
}

}  // namespace
}  // namespace primus
