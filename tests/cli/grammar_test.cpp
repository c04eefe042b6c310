// Modes, mistakes and exit codes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/program.h"

namespace primus {
namespace {

using test::ProgramResult;
using test::run_program;
using ::testing::HasSubstr;

struct Mistake {
  std::vector<std::string> words;
  std::string said;  // in standard error
};

TEST(Mistakes, EndWithCodeTwoAndAHint) {
  const std::string model = PRIMUS_SOURCE_DIR "/tests/golden/models/llama";
  const std::string experiment = PRIMUS_SOURCE_DIR "/examples/native/configs/CPU/llama_tiny-pretrain.yaml";
  const Mistake mistakes[] = {
      {{"trian"}, "did you mean 'train'?"},
      {{"train", "pretrian"}, "did you mean 'pretrain'?"},
      {{"--verison"}, "did you mean '--version'?"},
      {{"generate", model, "--promt", "x"}, "did you mean '--prompt'?"},
      {{"generate", model, "--temperature", "warm"}, "--temperature needs a number, not 'warm'"},
      {{"generate", model, "--top-k", "1.5"}, "--top-k needs a whole number, not '1.5'"},
      {{"generate", model, "--top-p", "2", "--tokenizer-type", "NullTokenizer", "--tokenizer", "8"},
       "top-p must be"},
      {{"generate", model, "--dtype", "bf61"}, "did you mean 'bf16'?"},
      {{"generate"}, "needs MODEL"},
      {{"generate", model, "extra"}, "does not take 'extra'"},
      {{"generate", model}, "--tokenizer"},
      {{"generate", "/nowhere"}, "there is no '/nowhere'"},
      {{"generate", model, "--threads", "-1", "--tokenizer-type", "NullTokenizer", "--tokenizer", "8", "-p",
        "1"},
       "--threads must be"},
      {{"train", "pretrain"}, "name an experiment with --config FILE"},
      {{"train", "pretrain", "--config", "/nowhere.yaml"}, "/nowhere.yaml"},
      {{"train", "pretrain", "--config"}, "--config"},
      {{"train", "pretrain", "--config", experiment, "--dry-rn"}, "did you mean '--dry-run'?"},
      {{"train", "pretrain", "--config", experiment, "--train-itres", "5"}, "did you mean 'train_iters'?"},
      {{"model", "verify", model}, "needs --inputs FILE"},
      {{"model", "info", "/tmp"}, "holds neither a model"},
      {{"--dry-run", "train", "pretrain"}, "stands before the command"},
      {{"container", "--", "train"}, "not there yet"},
      {{"slurm", "srun", "--", "direct", "--", "train"}, "not there yet"},
      {{"direct"}, "has no command"},
      {{"direct", "--"}, "has no command"},
      {{"direct", "--env", "X", "--", "help"}, "NAME=VALUE"},
      {{"--config", "x.yaml", "direct", "--", "help"}, "launcher file"},
      {{"--config=x.yaml", "direct", "--", "help"}, "launcher file"},
      {{"--dry-run", "direct", "--", "trian", "pretrain"}, "did you mean 'train'?"},
      {{"--dry-run", "direct", "--", "train", "pretrian"}, "did you mean 'pretrain'?"},
      {{"--dry-run", "direct", "--", "eval", "loss", "m"}, "needs --data PATH"},
      {{"--dry-run", "direct", "--", "generate", "m", "--promt", "x"}, "did you mean '--prompt'?"},
      {{"man", "quikstart"}, "did you mean 'quickstart'?"},
      {{"man", "chat", "--markdown"}, "exclude each other"},
      {{"completion", "csh"}, "SHELL cannot be 'csh'"},
      {{"quickstart", "--text", "/nowhere.txt"}, "/nowhere.txt"},
  };
  for (const Mistake& mistake : mistakes) {
    const ProgramResult result = run_program(mistake.words);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr("error: "));
    EXPECT_THAT(result.err, HasSubstr(mistake.said));
    EXPECT_EQ(result.out, "");
  }
}

TEST(Direct, RunsTheCommandHere) {
  EXPECT_EQ(run_program({"direct", "--", "model", "info", "--help"}).out,
            run_program({"model", "info", "--help"}).out);
  EXPECT_EQ(run_program({"--debug", "direct", "--single", "--", "config", "schema"}).exit_code, 0);
}

TEST(Direct, SetsTheEnvironment) {
  const std::string experiment = PRIMUS_SOURCE_DIR "/examples/native/configs/CPU/llama_tiny-pretrain.yaml";
  const ProgramResult result =
      run_program({"direct", "--env", "PRIMUS_EXP_NAME=named here", "--env=PRIMUS_TEAM=t", "--", "config",
                   "validate", "--config", experiment});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("named here"));
}

TEST(Direct, DryRunShowsWhatWouldRun) {
  const ProgramResult result =
      run_program({"--dry-run", "direct", "--env", "A=b c", "--", "train", "pretrain", "--config", "x.yaml"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "env 'A=b c' primus train pretrain --config x.yaml\n");
}

TEST(Output, AFullDiskIsAnError) {
  // /dev/full takes nothing.
  const ProgramResult result = run_program({"--help"}, {.output = "/dev/full"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("standard output"));
}

}  // namespace
}  // namespace primus
