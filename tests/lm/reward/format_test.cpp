// Tests the reward for the format of thoughts, and the penalty for long answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "reward_testing.h"

namespace primus {
namespace {

TEST(FormatReward, ThoughtsAndAnAnswer) {
  const std::pair<const char*, double> cases[] = {{"<think>a</think>b", 1},
                                                  {" <think>\na\n</think>\n\nb\n", 1},
                                                  {"<think></think>b", 1},
                                                  {"<think>a</think>", 0},
                                                  {"<think>a</think> \n", 0},
                                                  {"a</think>b", 0},
                                                  {"b", 0},
                                                  {"", 0},
                                                  {"<think>a", 0},
                                                  {"x<think>a</think>b", 0},
                                                  {"<think>a</think>b</think>c", 0},
                                                  {"<think><think>a</think>b", 0}};
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(value_of(score_one("format:think", text, nullptr)), expected) << text;
  }
  const nlohmann::json record;
  const ScoredAnswer opened{
      .prompt = "Name a prime.\n<think>\n", .completion = "a</think>7", .record = &record};
  RewardSettings settings;
  settings.functions = {"format:think"};
  EXPECT_EQ(value_of(make_rewards(settings).front()->score({&opened, 1}).front()), 1);
  EXPECT_THROW(score_one("format:json", "", nullptr), Error);
}

TEST(LengthReward, FallsLinearlyOverTheLastTokens) {
  const auto reward = [](const std::string& function, std::int64_t tokens) {
    const nlohmann::json record;
    const ScoredAnswer answer{.tokens = tokens, .record = &record};
    RewardSettings settings;
    settings.functions = {function};
    return make_rewards(settings).front()->score({&answer, 1}).front();
  };
  EXPECT_EQ(value_of(reward("length:100,20", 80)), 0);
  EXPECT_EQ(value_of(reward("length:100,20", 90)), -0.5);
  EXPECT_EQ(value_of(reward("length:100,20", 100)), -1);
  EXPECT_EQ(value_of(reward("length:100,20", 101)), -1);
  EXPECT_EQ(value_of(reward("length:100", 100)), 0);
  EXPECT_EQ(value_of(reward("length:100", 101)), -1);
  EXPECT_FALSE(reward("length:100", -1).value);
  for (const char* text :
       {"length:0", "length:x", "length:10,11", "length:10,", "length:99999999999999999999"}) {
    EXPECT_THROW(reward(text, 1), Error) << text;
  }
}

}  // namespace
}  // namespace primus
