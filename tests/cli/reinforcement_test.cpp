// Tests of the commands `primus train grpo`, `train rloo` and `train ppo` before a run starts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/program.h"

namespace primus {
namespace {

using test::ProgramResult;
using test::run_program;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Reinforcement, ARunWithoutARewardNamesAnExample) {
  for (const char* stage : {"grpo", "rloo", "ppo"}) {
    const ProgramResult result = run_program({"train", stage, "load=model", "data=prompts.jsonl"});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, AllOf(HasSubstr("no reward function scores the generated answers"),
                                  HasSubstr("reward=exact:answer"), Not(HasSubstr("presets"))));
    const ProgramResult nothing = run_program({"train", stage});
    EXPECT_EQ(nothing.exit_code, 2);
    EXPECT_THAT(nothing.err, HasSubstr("load=FOLDER data=FILE reward=exact:answer"));
  }
}

TEST(Reinforcement, ARewardModelNeedsNeitherBetaNorSampleTexts) {
  const ProgramResult result = run_program({"train", "reward", "load=no_such_model", "data=no_pairs.jsonl"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("no_such_model"), Not(HasSubstr("bad optional access")),
                                Not(HasSubstr("sample texts"))));
}

TEST(Reinforcement, WordsOfOtherProgramsNameTheCommand) {
  EXPECT_THAT(run_program({"grpo"}).err, HasSubstr("'primus train grpo load=MODEL"));
  EXPECT_THAT(run_program({"rlhf"}).err,
              AllOf(HasSubstr("'primus train ppo load=MODEL"), HasSubstr("'primus train grpo")));
}

}  // namespace
}  // namespace primus
