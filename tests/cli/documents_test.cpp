// Tests of README.md and docs/: the program accepts their commands, and README's first two paths run as
// printed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "base/temporary_folder.h"
#include "cli/program.h"

namespace primus {
namespace {

namespace fs = std::filesystem;
using test::ProgramResult;
using test::run_program;
using test::TemporaryFolder;
using Words = std::vector<std::string>;

const fs::path kSource(PRIMUS_SOURCE_DIR);

struct Command {
  std::string where;  // "docs/data.md:31"
  Words words;        // without the program's name
};

std::vector<fs::path> documents() {
  std::vector<fs::path> found{"README.md", "CONTRIBUTING.md"};
  for (const char* folder : {"docs", "docs/formats"}) {
    for (const fs::directory_entry& entry : fs::directory_iterator(kSource / folder)) {
      if (entry.path().extension() == ".md") found.push_back(fs::path(folder) / entry.path().filename());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

// Returns the Primus commands in a document's ```sh blocks. A shell splits them and expands the block's
// variables.
std::vector<Command> commands_of(const fs::path& document) {
  std::ifstream file(kSource / document);
  std::string script = "primus() { printf 'command\\n'; printf '%s\\n' \"$@\"; printf 'end\\n'; }\n";
  std::vector<std::string> places;
  bool in_block = false;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.starts_with("```")) {
      in_block = line == "```sh";
      continue;
    }
    if (!in_block) continue;
    const int first = number;
    for (std::string next; line.ends_with("\\") && std::getline(file, next); ++number)
      line = line.substr(0, line.size() - 1) + next;
    const std::size_t name = line.starts_with("build/bin/primus ") ? std::string("build/bin/").size() : 0;
    const std::size_t equals = line.find('=');
    const bool assigns = equals != std::string::npos && equals > 0 &&
                         line.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == equals;
    if (line.compare(name, 7, "primus ") == 0) {
      places.push_back(document.string() + ":" + std::to_string(first));
      // Redirections and pipes are cut off, because they would capture the printed words.
      script += line.substr(name, line.find_first_of("|>", name) - name) + "\n";
    } else if (assigns) {
      script += line + "\n";
    }
  }
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "script") << script;
  FILE* const pipe = popen(("sh " + (folder.path() / "script").string()).c_str(), "r");
  std::string text;
  for (int c = 0; (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
  EXPECT_EQ(pclose(pipe), 0) << document << "\n" << script;
  std::vector<Command> commands;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line != "command") continue;
    Command command{.where = places.at(commands.size()), .words = {}};
    while (std::getline(lines, line) && line != "end") command.words.push_back(line);
    commands.push_back(std::move(command));
  }
  EXPECT_EQ(commands.size(), places.size()) << document;
  return commands;
}

// A folder in which the documents' commands can run: the repository's files, an experiment exp.yaml, and
// stand-ins for the tools that launchers look for.
class Workplace {
 public:
  Workplace() {
    for (const char* name : {"examples", "presets"})
      fs::create_directory_symlink(kSource / name, folder_.path() / name);
    std::ofstream(folder_.path() / "titan.yaml")
        << "{work_group: g, user_name: u, exp_name: e, workspace: w, modules: {pre_trainer: {framework: "
           "torchtitan,"
           " config: pre_trainer.yaml, model: llama3.1_8B.yaml, overrides: {training: {steps: 5}}}}}";
    fs::create_directory(folder_.path() / "bin");
    for (const char* tool : {"srun", "sbatch", "scontrol", "kubectl", "docker", "torchrun", "python3"}) {
      const fs::path path = folder_.path() / "bin" / tool;
      std::ofstream(path) << "#!/bin/sh\n";
      fs::permissions(path, fs::perms::owner_all);
    }
    for (const char* file : {"job.py", "before.json", "train.jsonl"}) std::ofstream(folder_.path() / file);
    std::ofstream(folder_.path() / "program") << "#!/bin/sh\n";
    fs::permissions(folder_.path() / "program", fs::perms::owner_all);
    options_.folder = folder_.path().string();
    options_.environment = {{"PATH", (folder_.path() / "bin").string() + ":/usr/bin:/bin"}};
  }
  ProgramResult run(const Words& words) const { return run_program(words, options_); }
  const fs::path& path() const { return folder_.path(); }
  // Writes exp.yaml from a file of examples/native/configs/CPU. micro_batch_size is 1, so that many ranks can
  // divide the batch.
  void set_experiment(const std::string& name) const {
    std::ifstream file(kSource / "examples/native/configs/CPU" / name);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    std::ofstream(folder_.path() / "exp.yaml")
        << std::regex_replace(text, std::regex("micro_batch_size: \\d+"), "micro_batch_size: 1");
  }
  test::ProgramOptions& options() { return options_; }

 private:
  TemporaryFolder folder_;
  test::ProgramOptions options_;
};

bool is_mode(const std::string& word) {
  return word == "direct" || word == "slurm" || word == "container" || word == "k8s";
}

// Returns the run or model that `words` names. Earlier commands of the document would have made it.
std::string named_run(const Words& words) {
  for (const std::string& word : words)
    if (word == "RUN" || word.starts_with("output/")) return word;
  return {};
}

// Each command is planned with --dry-run, which checks its words, settings and files and runs nothing.
TEST(Documents, CommandsAreAccepted) {
  const Workplace workplace;
  std::size_t checked = 0;
  for (const fs::path& document : documents()) {
    for (const Command& command : commands_of(document)) {
      if (command.words[0].starts_with("[")) continue;  // a usage line, not a command
      Words words{"--dry-run"};
      if (command.words[0] == "--dry-run") words.clear();
      if (words.size() == 1 && !is_mode(command.words[0])) words.insert(words.end(), {"direct", "--"});
      words.insert(words.end(), command.words.begin(), command.words.end());
      // The folder that the documents measure does not exist here.
      if (const auto path = std::ranges::find(words, "--path");
          path != words.end() && path + 1 != words.end())
        path[1] = workplace.path().string();
      if (const std::string run = named_run(command.words); !run.empty())
        fs::create_directories(workplace.path() / run);
      const bool tunes = std::ranges::find(command.words, "posttrain") != command.words.end();
      workplace.set_experiment(tunes ? "llama_tiny-sft.yaml" : "llama_tiny-pretrain.yaml");
      const ProgramResult result = workplace.run(words);
      EXPECT_EQ(result.exit_code, 0) << command.where << "\n" << result.err;
      ++checked;
    }
  }
  EXPECT_GT(checked, 50U);
}

// README's commands for text and for conversations run with fewer steps and a smaller vocabulary than
// printed.
TEST(Documents, ReadmesPathsForTextAndConversationsRun) {
  Workplace workplace;
  std::ofstream text(workplace.path() / "corpus.txt");
  for (int i = 0; i < 600; ++i)
    text << "In the beginning was the word, and the word was number " << i << ".\n\n";
  text.close();
  workplace.options().input = "Who?\n";  // input for chat
  std::size_t ran = 0;
  for (const Command& command : commands_of("README.md")) {
    Words words = command.words;
    if (words[0] == "device") break;  // the third path needs a cluster
    for (std::size_t i = 0; i + 1 < words.size(); ++i) {
      if (words[i] == "--vocab-size") words[i + 1] = "300";
      if (words[i] == "--minutes") words[i] = "--train_iters", words[i + 1] = "3";
    }
    if (words[0] == "train") words.insert(words.end(), {"seq_length=192"});
    if (words[0] == "train" && words[1] == "posttrain") words.insert(words.end(), {"--train_iters", "3"});
    const ProgramResult result = workplace.run(words);
    EXPECT_EQ(result.exit_code, 0) << command.where << "\n" << result.out << result.err;
    ++ran;
  }
  EXPECT_GE(ran, 9U);
}

// The check of this file reports a command or an option that does not exist.
TEST(Documents, MistakesInDocumentsAreFound) {
  const Workplace workplace;
  workplace.set_experiment("llama_tiny-pretrain.yaml");
  for (const Words& wrong : {Words{"trian", "pretrain", "--config", "exp.yaml"},
                             Words{"train", "pretrain", "--config", "exp.yaml", "--itres", "3"},
                             Words{"train", "pretrain", "--config", "exp.yaml", "train_itres=3"},
                             Words{"benchmark", "gemm", "--seq-len", "8"}}) {
    Words words{"--dry-run", "direct", "--"};
    words.insert(words.end(), wrong.begin(), wrong.end());
    EXPECT_EQ(workplace.run(words).exit_code, 2) << wrong[0] << " " << wrong.back();
  }
}

}  // namespace
}  // namespace primus
