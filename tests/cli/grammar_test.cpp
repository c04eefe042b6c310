// Tests of mistakes on the command line: messages, hints and exit codes.
#include "cli/program_names.h"

namespace primus {
namespace {

struct Mistake {
  std::vector<std::string> words;
  std::string said;  // on standard error
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
      {{"generate", model, "extra"}, "does not accept 'extra'"},
      {{"generate", model}, "--tokenizer"},
      {{"generate", "/nowhere"}, "'/nowhere' does not exist"},
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
      {{"--dry-run", "train", "pretrain"}, "must come after the command"},
      {{"direct"}, "has no command"},
      {{"direct", "--"}, "has no command"},
      {{"direct", "--env", "X", "--", "help"}, "there is no file of variables 'X'"},
      {{"direct", "--env", "1X=2", "--", "help"}, "is not the name of a variable"},
      {{"direct", "--env", "HF_TOKEN=x", "--", "help"}, "HF_TOKEN is a secret"},
      {{"direct", "--numa", "--no-numa", "--", "help"}, "exclude each other"},
      {{"direct", "--pacth", "x", "--", "help"}, "did you mean '--patch'?"},
      {{"direct", "--", "trian", "pretrain"}, "did you mean 'train'?"},
      {{"--config", "x.yaml", "direct", "--", "help"}, "x.yaml"},
      {{"direct", "--config=x.yaml", "--", "help"}, "x.yaml"},
      {{"--config", "x.yaml", "train", "pretrain"}, "which only modes use"},
      {{"--dry-run", "direct", "--", "train", "pretrain", "--config", "/nowhere.yaml"},
       "there is no experiment '/nowhere.yaml'"},
      {{"train", "pretrain", "--config", experiment, "--nnodes", "2"}, "needs --master_addr"},
      {{"train", "pretrain", "--config", experiment, "--node_rank", "1"}, "is not below --nnodes 1"},
      {{"--dry-run", "direct", "--", "trian", "pretrain"}, "did you mean 'train'?"},
      {{"--dry-run", "direct", "--", "train", "pretrian"}, "did you mean 'pretrain'?"},
      {{"--dry-run", "direct", "--", "eval", "loss", model}, "needs --data PATH"},
      {{"--dry-run", "direct", "--", "generate", "m", "--promt", "x"}, "did you mean '--prompt'?"},
      {{"man", "quikstart"}, "did you mean 'quickstart'?"},
      {{"man", "chat", "--markdown"}, "exclude each other"},
      {{"completion", "csh"}, "SHELL cannot be 'csh'"},
      {{"quickstart", "--text", "/nowhere.txt"}, "/nowhere.txt"},
      // An option that takes one value is given twice.
      {{"train", "pretrain", "--config", experiment, "--exp", "other.yaml"},
       "--config is given more than once: '" + experiment + "', 'other.yaml'"},
      {{"train", "pretrain", "--config", "a.yaml", "--config", "b.yaml"}, "extends: [other.yaml]"},
      {{"generate", model, "-p", "one", "--prompt", "two"}, "--prompts FILE"},
      {{"train", "pretrain", "--config", experiment, "--nproc", "2", "--nproc_per_node", "1"},
       "--nproc is given more than once: '2', '1'"},
      {{"k8s", "--image", "a", "--image", "b", "--", "version"}, "--image is given more than once: 'a', 'b'"},
      {{"--dry-run", "slurm", "srun", "-N", "2", "--nodes=4", "--", "direct", "--", "version"},
       "--nodes=2 and --nodes=4 contradict each other: srun would use only the last"},
  };
  for (const Mistake& mistake : mistakes) {
    const ProgramResult result = run_program(mistake.words);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr("error: "));
    EXPECT_THAT(result.err, HasSubstr(mistake.said));
    EXPECT_EQ(result.out, "");
  }
}

// An option may be given twice with equal values, and switches and lists may be repeated.
TEST(Options, MayBeRepeatedIfNothingIsLost) {
  const std::string experiment = PRIMUS_SOURCE_DIR "/examples/native/configs/CPU/llama_tiny-pretrain.yaml";
  const ProgramResult result = run_program(
      {"config", "validate", "--config", experiment, "--exp", experiment, "--json", "--json", "lr=1e-3"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(Output, ToAFullDiskIsAnError) {
  // Every write to /dev/full fails.
  const ProgramResult result = run_program({"--help"}, {.output = "/dev/full"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("standard output"));
}

}  // namespace
}  // namespace primus
