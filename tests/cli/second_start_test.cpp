// Tests of fine-tuning runs that are started a second time: a dry run makes the checks of training, and a run
// names the number of ranks on which it can continue.
#include <filesystem>
#include <fstream>

#include "base/files/file.h"
#include "cli/program_names.h"
#include "cli/runs.h"

namespace primus {
namespace {

using ::testing::Not;

class SecondStart : public ::testing::Test {
 protected:
  SecondStart() {
    write("chats.jsonl", chats("blue"));
    write("others.jsonl", chats("red"));
    for (const char* seed : {"1", "2"}) {
      const ProgramResult base = run_program(
          test::train(folder_.path(),
                      {"train_iters=1", "num_layers=1", "hidden_size=32", "ffn_hidden_size=64",
                       "num_attention_heads=4", "num_query_groups=4", "max_position_embeddings=256",
                       "eval_iters=0", std::string("seed=") + seed, std::string("exp_name=base") + seed}));
      EXPECT_EQ(base.exit_code, 0) << base.err;
    }
  }

  static std::string chats(const std::string& colour) {
    std::string lines;
    for (int i = 0; i < 12; ++i)
      lines +=
          nlohmann::json{{"question", "Colour " + std::to_string(i) + "?"}, {"answer", colour}}.dump() + "\n";
    return lines;
  }
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_.path() / name, std::ios::binary) << content;
  }
  std::string run(const std::string& name) const { return test::run_folder(folder_.path(), name).string(); }
  // Fine-tunes base1 on chats.jsonl. Later words replace earlier ones.
  ProgramResult tune(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"train",
                                      "posttrain",
                                      "load=" + run("base1"),
                                      "data=" + at("chats.jsonl"),
                                      "sft_conversation_format=squad",
                                      "workspace=" + folder_.path().string(),
                                      "work_group=w",
                                      "user_name=u",
                                      "exp_name=tuned",
                                      "num_threads=1",
                                      "--plain"};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words);
  }

  TemporaryFolder folder_;
};

// Returns the lines of an error message, without the log before it.
std::string error_in(const std::string& text) {
  const std::size_t begin = text.find("error: ");
  return begin == std::string::npos ? "no error" : text.substr(begin);
}

TEST_F(SecondStart, ADryRunRefusesTheRunsThatTrainingRefuses) {
  ASSERT_EQ(tune({"train_iters=2"}).exit_code, 0);
  for (const auto& [change, text] :
       {std::pair("load=" + run("base2"), "was started from the weights of"),
        std::pair("data=" + at("others.jsonl"), "was trained with another set of conversations"),
        std::pair(std::string("sft_conversation_format=zephyr"), "was trained with sft_conversation_format"),
        std::pair(std::string("split=70,30,0"), "split: unset")}) {
    SCOPED_TRACE(change);
    const ProgramResult refused = tune({"train_iters=4", change});
    const ProgramResult planned = tune({"train_iters=4", change, "--dry-run"});
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_EQ(planned.exit_code, 2);
    EXPECT_THAT(refused.err, HasSubstr(text));
    EXPECT_EQ(error_in(planned.err), error_in(refused.err));
  }
  const ProgramResult permitted =
      tune({"train_iters=4", "data=" + at("others.jsonl"), "allow_data_change=true", "--dry-run"});
  EXPECT_EQ(permitted.exit_code, 0);
  EXPECT_THAT(permitted.err,
              AllOf(HasSubstr("warning: "), HasSubstr("allow_data_change permits the change")));
  const ProgramResult same = tune({"train_iters=4", "--dry-run"});
  EXPECT_EQ(same.exit_code, 0) << same.err;
  EXPECT_THAT(same.err,
              AllOf(HasSubstr("note: the run continues from iteration 2: 2 of its 4 steps are left"),
                    Not(HasSubstr("does not compare"))));
  // Epochs determine the number of steps only after the data were read.
  const ProgramResult epochs = tune({"train_epochs=8", "--dry-run"});
  EXPECT_EQ(epochs.exit_code, 0) << epochs.err;
  EXPECT_THAT(epochs.err, HasSubstr("note: the run continues from iteration 2"));
}

TEST_F(SecondStart, ARunWithASmallBatchNamesTheRanksOnWhichItContinues) {
  ASSERT_EQ(tune({"train_iters=2", "global_batch_size=1"}).exit_code, 0);
  const ProgramResult refused = tune({"train_iters=4", "global_batch_size=1", "--nproc", "2"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("was saved with global_batch_size 1, which a run keeps"),
                                 HasSubstr("continue it on 1 data-parallel rank, or start another run"),
                                 Not(HasSubstr("set it to a multiple of"))));
  const ProgramResult fresh = tune({"exp_name=new", "global_batch_size=1", "--nproc", "2"});
  EXPECT_THAT(fresh.err, HasSubstr("set it to a multiple of 2"));
}

TEST_F(SecondStart, AFinishedRunNamesItsLengthAndHowToTrainLonger) {
  ASSERT_EQ(tune({"train_iters=2"}).exit_code, 0);
  EXPECT_THAT(tune({"train_iters=2"}).out,
              AllOf(HasSubstr("nothing left to do: the run had reached iteration 2"),
                    HasSubstr("train_iters is 2"), HasSubstr("to train longer: train_iters=..., above 2")));
}

// Without an experiment file, the command sets some keys itself.
TEST_F(SecondStart, ErrorsAndWarningsNameNoPlaceThatTheUserDidNotWrite) {
  write("pairs.jsonl", R"({"prompt": "2+2?", "chosen": "4", "rejected": "5"})"
                       "\n");
  const ProgramResult other = tune({"stage=dpo", "data=" + at("pairs.jsonl"), "exp_name=pairs", "--dry-run"});
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_THAT(other.err, Not(HasSubstr("no experiment file")));
  const ProgramResult small = tune({"stage=dpo", "data=" + at("pairs.jsonl"), "beta=0"});
  EXPECT_EQ(small.exit_code, 2);
  EXPECT_THAT(small.err, HasSubstr("a small beta, for example 0.01"));
}

TEST_F(SecondStart, ATextThatIsNamedTwiceIsReported) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "The sea is green.\n\n";
  write("text.txt", text);
  const ProgramResult twice = run_program(test::train(
      folder_.path(), {"exp_name=twice", "mock_data=false", "split=100,0,0", "train_iters=1", "eval_iters=0",
                       "seq_length=32", "data_path=[" + at("text.txt") + ", " + at("text.txt") + "]"}));
  EXPECT_EQ(twice.exit_code, 0) << twice.err;
  EXPECT_THAT(twice.err, HasSubstr("names '" + at("text.txt") + "' 2 times"));
}

// Answers are packed, so a step fills fewer microbatches than it has.
TEST_F(SecondStart, APlanOfReinforcementLearningCountsPackedAnswers) {
  std::string lines;
  for (int i = 0; i < 12; ++i)
    lines += nlohmann::json{{"prompt", "Colour " + std::to_string(i) + "?"}, {"answer", "red"}}.dump() + "\n";
  write("prompts.jsonl", lines);
  std::vector<std::string> words = {"train",
                                    "grpo",
                                    "load=" + run("base1"),
                                    "data=" + at("prompts.jsonl"),
                                    "reward=exact:answer",
                                    "sft_conversation_format=none",
                                    "workspace=" + folder_.path().string(),
                                    "num_generations=4",
                                    "global_batch_size=32",
                                    "micro_batch_size=2",
                                    "seq_length=256",
                                    "max_completion_length=4",
                                    "num_threads=1",
                                    "train_iters=10",
                                    "--dry-run"};
  const ProgramResult plan = run_program(words);
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  // 32 prompts of 10 tokens with answers of 4 tokens fit into the two rows of one microbatch.
  EXPECT_THAT(plan.out, AllOf(HasSubstr("1 of 16 microbatches"), HasSubstr("10 of 512 tokens")));
  words.emplace_back("max_completion_length=200");  // one answer fits into a row
  const ProgramResult longer = run_program(words);
  EXPECT_THAT(longer.out, AllOf(HasSubstr("16 of 16 microbatches"), HasSubstr("10 of 8192 tokens")));
}

}  // namespace
}  // namespace primus
