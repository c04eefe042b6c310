// Tests rewards that compare an answer with a column, or search for a pattern.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "base/error.h"
#include "base/files/file.h"
#include "base/files/scratch_folder.h"
#include "reward_testing.h"

namespace primus {
namespace {

using testing::HasSubstr;

struct Case {
  std::string answer;
  nlohmann::json expected;
  double reward;
};

TEST(ExactReward, IgnoresCaseWhiteSpaceAndThoughts) {
  const Case cases[] = {
      {"Paris", "Paris", 1},
      {"  paris\n", "Paris", 1},
      {"New\n\tYork", "new york", 1},
      {"<think>London?</think>Paris", "Paris", 1},
      {"<think>Paris", "Paris", 0},
      {"Paris.", "Paris", 0},
      {"", "Paris", 0},
      {"E\u0301cole", "\u00e9cole", 1},
      {"7", 7, 1},
      {"true", true, 1},
      {"\xff\xfe", "Paris", 0},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(value_of(score_one("exact:a", c.answer, {{"a", c.expected}})), c.reward) << c.answer;
  }
}

TEST(ExactReward, AMissingColumnGivesNoReward) {
  const auto problem_of = [](const nlohmann::json& record) {
    const Reward reward = score_one("exact:a", "x", record);
    EXPECT_FALSE(reward.value);
    return reward.problem;
  };
  EXPECT_THAT(problem_of({{"b", 1}}), HasSubstr("no column 'a'"));
  EXPECT_THAT(problem_of({{"a", nullptr}}), HasSubstr("null"));
  EXPECT_THAT(problem_of({{"a", {1, 2}}}), HasSubstr("a list"));
}

TEST(NumberReward, ComparesNumbersInUsualSpellings) {
  const Case cases[] = {
      {"The answer is 1,000.", "1000", 1},
      {"1e3", "1000", 1},
      {"It is 1/2", "0.5", 1},
      {"It is \\frac{1}{2}.", "0.5", 1},
      {"50%", "0.5", 1},
      {"50%", "50", 1},
      {"50\\%", "51", 0},
      {"-3", "3", 0},
      {"\u22123", "-3", 1},
      {"-$5", "-5", 1},
      {"$1,234.50", 1234.5, 1},
      {"pages 3-5", "5", 1},
      {"5 - 3 = 2", "2", 1},
      {"first 7, then \\boxed{42} and 9", "42", 1},
      {"\\boxed{\\text{about } 42}", "42", 1},
      {"\\boxed{41} or \\boxed{42}", "42", 1},
      {"\\boxed{none} 42", "42", 0},
      {"#### 18\nthanks 3", "He has 9*2 = 18\n#### 18", 1},
      {"THE ANSWER IS: 12 apples\nnot 13", "12", 1},
      {"1,2,3", "3", 1},
      {"1,23", "23", 1},
      {"12{,}345", "12345", 1},
      {"3.14.", "3.14", 1},
      {".5", "0.5", 1},
      {"1/0", "0", 0},
      {"1e999", "1", 0},
      {"no number", "1", 0},
      {"", "0", 0},
      {"12345678901234567891", "12345678901234567890", 0},
      {"12345678901234567890", "12345678901234567890", 1},
      {"007", "7", 1},
      {"<think>5</think>6", "5", 0},
      {"0.3333", "1/3", 0},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(value_of(score_one("number:a", c.answer, {{"a", c.expected}})), c.reward) << c.answer;
  }
  EXPECT_THAT(score_one("number:a", "1", {{"a", "none"}}).problem, HasSubstr("no number"));
}

TEST(NumberReward, NeedsLinearTimeForLongTexts) {
  const auto start = std::chrono::steady_clock::now();
  for (const std::string part :
       {"1,000,", "\\boxed{", "#", "the answer is ", "1/", "-", "\\frac{1}{2}", "``` \n"}) {
    std::string text;
    while (text.size() < (1U << 20)) text += part;
    score_one("number:a", text, {{"a", "1"}});
    score_one("exact:a", text, {{"a", "1"}});
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(RegexReward, SearchesInTheAnswer) {
  EXPECT_EQ(value_of(score_one("regex:^yes", "yes, it is", nullptr)), 1);
  EXPECT_EQ(value_of(score_one("regex:^yes", "oh yes", nullptr)), 0);
  EXPECT_EQ(value_of(score_one("regex:(?i)YES$", "oh yes", nullptr)), 1);
  EXPECT_EQ(value_of(score_one("regex:a:b", "a:b", nullptr)), 1);
  EXPECT_EQ(value_of(score_one("regex:b",
                               "\xff"
                               "b",
                               nullptr)),
            1);
  EXPECT_EQ(value_of(score_one("regex:b", "<think>b</think>c", nullptr)), 0);
}

TEST(RegexReward, HostilePatternsGiveNoRewardInBoundedTime) {
  const std::string text = std::string(100'000, 'a') + "!";
  for (const char* pattern : {"regex:(a+)+$", "regex:(a|aa)+b", "regex:(a*)*b", "regex:(?=(a+))\\1*b",
                              "regex:(.*)(.*)(.*)(.*)(.*)x"}) {
    const auto start = std::chrono::steady_clock::now();
    const Reward reward = score_one(pattern, text, nullptr);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10)) << pattern;
    EXPECT_TRUE(!reward.value || *reward.value == 0) << pattern;
  }
  EXPECT_THAT(score_one("regex:(a+)+$", text, nullptr).problem, HasSubstr("too many steps"));
}

TEST(MakeRewards, InvalidTextsAreErrors) {
  const auto error_of = [](RewardSettings settings) {
    try {
      make_rewards(settings);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      return error.render();
    }
    return std::string();
  };
  EXPECT_THAT(error_of({}), HasSubstr("exact:COLUMN"));
  EXPECT_THAT(error_of({.functions = {"numbr:a"}}), HasSubstr("number"));
  EXPECT_THAT(error_of({.functions = {"exact"}}), HasSubstr("write exact:COLUMN"));
  EXPECT_THAT(error_of({.functions = {"regex:("}}), HasSubstr("is invalid at character"));
  EXPECT_THAT(error_of({.functions = {"https://host/x"}}), HasSubstr("https is not supported"));
  EXPECT_THAT(error_of({.functions = {"exact:a"}, .weights = {1, 2}}), HasSubstr("one weight for each"));
  EXPECT_THAT(error_of({.functions = {"exact:a"}, .timeout_seconds = 0}), HasSubstr("max time"));
  EXPECT_THAT(error_of({.functions = {"exact:a"}, .workers = -1}), HasSubstr("workers"));
  EXPECT_THAT(error_of({.functions = {"program:no-such-file"}}), HasSubstr("does not exist"));
  // The system could start it only in a run, and would say "Exec format error".
  const ScratchFolder folder("reward-without-interpreter");
  const std::string script = (folder.path() / "reward.py").string();
  write_file(script, "print(1)\n");
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  EXPECT_THAT(error_of({.functions = {"program:" + script}}), HasSubstr("does not name an interpreter"));
  EXPECT_THAT(error_of({.functions = {"program:'open"}}), HasSubstr("quote"));
}

TEST(RewardNames, FunctionsWithEqualNamesGetNumbers) {
  RewardSettings settings;
  settings.functions = {"regex:1", "exact:answer", "regex:2"};
  EXPECT_THAT(distinct_names(make_rewards(settings)), testing::ElementsAre("regex-1", "exact", "regex-2"));
}

}  // namespace
}  // namespace primus
