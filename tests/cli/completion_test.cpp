// Tests of shell completion: the program's candidates, and bash, zsh and fish with the Tab key.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/files/file.h"
#include "base/temporary_folder.h"
#include "cli/program.h"
#include "cli/terminal_program.h"

namespace primus {
namespace {

using test::run_program;
using test::TerminalProgram;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsSupersetOf;
using ::testing::Not;

// Returns the candidates for the last word, then which kind of paths the shell completes.
std::vector<std::string> offered(std::vector<std::string> words) {
  words.insert(words.begin(), "__complete");
  const test::ProgramResult result = run_program(words);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  std::vector<std::string> out;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) out.push_back(line.substr(0, line.find('\t')));
  return out;
}

TEST(Completion, CompletesCommands) {
  EXPECT_THAT(offered({""}), IsSupersetOf({"train", "model", "chat", "direct", "help", ":none"}));
  EXPECT_THAT(offered({""}), IsSupersetOf({"container", "slurm", "k8s"}));
  EXPECT_THAT(offered({""}), Not(Contains("megatron")));
  EXPECT_THAT(offered({"ge"}), ElementsAre("generate", ":none"));
  EXPECT_THAT(offered({"model", "i"}), ElementsAre("import", "info", ":none"));
  EXPECT_THAT(offered({"help", "model", "i"}), ElementsAre("import", "info", ":none"));
  EXPECT_THAT(offered({"--deb"}), ElementsAre("--debug", ":none"));
  EXPECT_THAT(offered({"--debug", "ge"}), ElementsAre("generate", ":none"));
  EXPECT_THAT(offered({"nonsense", ""}), ElementsAre(":none"));
  EXPECT_THAT(offered({}), Contains("train"));
}

TEST(Completion, CompletesOptionsAndTheirValues) {
  EXPECT_THAT(offered({"chat", "--temp"}), ElementsAre("--template", "--temperature", ":none"));
  EXPECT_THAT(offered({"chat", "--template", "plain", "--temp"}), ElementsAre("--temperature", ":none"));
  EXPECT_THAT(offered({"chat", "--template", ""}),
              ElementsAre("auto", "plain", "alpaca", "squad", "chatml", "llama3", "mistral", "gemma", "phi3",
                          "phi4", "zephyr", ":none"));
  EXPECT_THAT(offered({"chat", "--template=pl"}), ElementsAre("--template=plain", ":none"));
  EXPECT_THAT(offered({"chat", "--tokenizer", ""}), ElementsAre(":files"));
  EXPECT_THAT(offered({"chat", ""}), ElementsAre(":folders"));
  EXPECT_THAT(offered({"completion", ""}), ElementsAre("bash", "zsh", "fish", ":none"));
  // An option with a list accepts words until the next option.
  EXPECT_THAT(offered({"data", "tokenize", "-i", "a", "b", ""}), ElementsAre(":files"));
  EXPECT_THAT(offered({"data", "tokenize", "-i", "a", "--app"}), ElementsAre("--append-eod", ":none"));
}

TEST(Completion, CompletesSettings) {
  const std::vector<std::string> command{"train", "pretrain", "--config", "x.yaml"};
  auto with = [&](const std::string& typed) {
    std::vector<std::string> words = command;
    words.push_back(typed);
    return offered(words);
  };
  EXPECT_THAT(with("micro_"), Contains("micro_batch_size="));
  EXPECT_THAT(with("exp_"), Contains("exp_name="));
  EXPECT_THAT(with("bf16="), ElementsAre("bf16=true", "bf16=false", ":none"));
  EXPECT_THAT(offered({"train", "pretrain", "--config", ""}), ElementsAre(":files"));
}

TEST(Completion, CompletesTheCommandAfterAMode) {
  EXPECT_THAT(offered({"direct", "--"}), IsSupersetOf({"--single", "--env", "--"}));
  EXPECT_THAT(offered({"direct", "--single", "--", "mod"}), ElementsAre("model", ":none"));
  EXPECT_THAT(offered({"container", "--runtime", "p"}), ElementsAre("podman", ":none"));
  EXPECT_THAT(offered({"slurm", "srun", "-N", "2", "--", "direct", "--", "mod"}),
              ElementsAre("model", ":none"));
  EXPECT_THAT(offered({"slurm", "srun", "--", "container", "--priv"}),
              ElementsAre("--privileged-set", ":none"));
  EXPECT_THAT(offered({"direct", "--", "chat", "--template", "pl"}), ElementsAre("plain", ":none"));
}

bool installed(const std::string& shell) {
  return std::system(("command -v " + shell + " >/dev/null 2>&1").c_str()) == 0;
}

class Shells : public ::testing::Test {
 protected:
  // Makes a folder with the program and with paths that can be completed.
  void SetUp() override {
    std::filesystem::create_symlink(PRIMUS_PROGRAM, folder_.path() / "primus");
    std::filesystem::create_directory(folder_.path() / "some models");
    write_file(folder_.path() / "my-experiment.yaml", "");
  }
  std::map<std::string, std::string> environment() const {
    return {{"PATH", folder_.path().string() + ":" + std::getenv("PATH")},
            {"HOME", folder_.path().string()},
            {"PS1", "> "},
            {"PWD", folder_.path().string()}};
  }
  std::string here() const { return "cd '" + folder_.path().string() + "'\n"; }

  // Types lines with Tabs at a person's speed, because zsh treats a Tab as pasted text if more keys follow at
  // once. The shell's history then holds the completed line.
  void expect_completions(TerminalProgram& shell) const {
    const std::pair<std::string, const char*> cases[] = {
        {"primus qui\t--st\t7 #", "primus quickstart --steps 7 #"},
        {"primus tra\tpre\t--con\tmy-\t#", "primus train pretrain --config my-experiment.yaml #"},
        {"primus train pretrain --config x micro_b\t8 #", "--config x micro_batch_size=8 #"},
        {"primus train pretrain --config x bf16=t\t#", "bf16=true #"},
        {"primus chat --template=pl\t#", "primus chat --template=plain #"},
        {"primus chat some\t#", "primus chat some\\ models/#"},
        {"primus direct -- model inf\t#", "-- model info #"},
    };
    for (const auto& [keys, line] : cases) {
      for (std::size_t begin = 0; begin < keys.size();) {
        const std::size_t tab = std::min(keys.find('\t', begin), keys.size());
        shell.type(keys.substr(begin, tab - begin));
        shell.settle(100);
        if (tab < keys.size()) shell.type("\t");
        shell.settle(500);
        begin = tab + 1;
      }
      const std::size_t before = shell.shown().size();
      shell.type("\n");
      shell.settle(200);
      shell.type("fc -ln -1\n");
      EXPECT_TRUE(shell.see(line, 30)) << keys << ": " << shell.shown().substr(before);
    }
    shell.type("exit\n");
  }

  test::TemporaryFolder folder_;
};

TEST_F(Shells, Bash) {
  if (!installed("bash")) GTEST_SKIP() << "bash is not installed";
  TerminalProgram shell({"bash", "--norc", "--noprofile", "-i"}, environment(), 200);
  shell.type(here() +
             "bind 'set enable-bracketed-paste off'; source <(primus completion bash)\necho rea''dy\n");
  ASSERT_TRUE(shell.see("ready\r")) << shell.shown();
  expect_completions(shell);
}

TEST_F(Shells, Zsh) {
  if (!installed("zsh")) GTEST_SKIP() << "zsh is not installed";
  TerminalProgram shell({"zsh", "-f", "-i"}, environment(), 200);
  shell.type(here() +
             "unset zle_bracketed_paste; setopt interactive_comments no_prompt_sp; autoload -Uz compinit; "
             "compinit -u -D; "
             "source <(primus completion zsh)\necho rea''dy\n");
  ASSERT_TRUE(shell.see("ready\r")) << shell.shown();
  expect_completions(shell);
}

TEST_F(Shells, Fish) {
  if (!installed("fish")) GTEST_SKIP() << "fish is not installed";
  // fish prints the candidates for a line with `complete -C`, so no keys are typed.
  auto completions = [&](const std::string& line) {
    TerminalProgram shell({"fish", "--no-config", "-c",
                           here() + "primus completion fish | source\ncomplete -C '" + line + "'\n"},
                          environment());
    EXPECT_EQ(shell.wait(), 0) << shell.shown();
    return shell.shown();
  };
  EXPECT_THAT(completions("primus tra"), ::testing::HasSubstr("train\t"));
  EXPECT_THAT(completions("primus model inf"), ::testing::HasSubstr("info\tShows"));
  EXPECT_THAT(completions("primus quickstart --st"), ::testing::HasSubstr("--steps\t"));
  EXPECT_THAT(completions("primus train pretrain --config my-"), ::testing::HasSubstr("my-experiment.yaml"));
  EXPECT_THAT(completions("primus train pretrain --config=my-"),
              ::testing::HasSubstr("--config=my-experiment.yaml"));
  EXPECT_THAT(completions("primus train pretrain --config x bf16=t"), ::testing::HasSubstr("bf16=true"));
  EXPECT_THAT(completions("primus chat some"), ::testing::HasSubstr("some models/"));
}

}  // namespace
}  // namespace primus
