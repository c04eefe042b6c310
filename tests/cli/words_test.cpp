// Tests of the hints for commands and options of other programs.
#include <sys/mman.h>
#include <unistd.h>

#include <regex>

#include "../../src/cli/program.h"  // not the tests' own program.h
#include "cli/command.h"
#include "cli/grammar.h"
#include "cli/launch/mode.h"
#include "cli/program_names.h"
#include "config/loading/elsewhere.h"

namespace primus {
namespace {

struct Said {
  int exit_code;
  std::string err;
};

Said run_here(const std::vector<std::string>& words) {
  const int file = memfd_create("errors", MFD_CLOEXEC);
  cli::Console console{.out = {}, .err = {.fd = file}, .program = "primus", .invocation = "primus"};
  Said said{cli::run(words, console), {}};
  char buffer[4096];
  lseek(file, 0, SEEK_SET);
  for (ssize_t got; (got = read(file, buffer, sizeof(buffer))) > 0;)
    said.err.append(buffer, static_cast<std::size_t>(got));
  close(file);
  return said;
}

// A word from another program gets its hint, both alone and after each command group of Primus.
TEST(Words, FromOtherProgramsGetAnAnswer) {
  for (const std::string_view view : config::words_from_elsewhere()) {
    const std::string word(view);
    const std::string answer = config::answer_for(word).value();
    for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
             {word}, {"train", word}, {"eval", word}, {"model", word}, {"data", word}}) {
      const std::string name = words.size() > 1 ? words[0] + " " + words[1] : word;
      if (cli::find_command(name) || name == "data diffusion") continue;  // it has its own hints
      const Said said = run_here(words);
      EXPECT_EQ(said.exit_code, 2) << name;
      const auto of_group = words.size() > 1 ? config::answer_for(words[0] + "-" + word) : std::nullopt;
      EXPECT_EQ(said.err,
                "error: there is no command '" + name + "'\n  hint: " + of_group.value_or(answer) + "\n");
    }
    EXPECT_FALSE(cli::find_command(word) || cli::is_group(word) || cli::find_mode(word))
        << word << " is a command of Primus";
  }
}

TEST(Words, AnswersFitTheGroupOfCommands) {
  for (const auto& [words, answer] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"rm"}, "rm -r FOLDER"},
           {{"model", "delete"}, "rm -r FOLDER"},
           {{"config", "list"}, "'primus config reference' explains"},
           {{"config", "get", "lr"}, "'primus config reference' explains"},
           {{"data", "download", "wikitext"}, "--repo-type dataset"},
           {{"data", "convert"}, "primus data tokenize"}})
    EXPECT_THAT(run_here(words).err, testing::HasSubstr(answer)) << words.back();
}

TEST(Words, AModeInPlaceOfACommandIsNamed) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"direct", "--", "direct", "--", "version"},
           {"k8s", "--image", "a/b:1", "--", "direct", "--", "direct", "--", "version"}}) {
    const Said said = run_here(words);
    EXPECT_EQ(said.exit_code, 2);
    EXPECT_EQ(said.err,
              "error: 'direct' is a mode, but a command is expected here\n"
              "  hint: remove 'direct': another mode already starts the command\n");
  }
  EXPECT_THAT(run_here({"k8s", "--image", "a/b:1", "--", "container", "--", "version"}).err,
              HasSubstr("remove 'container'"));
}

TEST(Words, CommandsAreFoundWithoutTheirGroup) {
  const auto hint_for = [](const std::string& word) { return run_here({word}).err; };
  EXPECT_THAT(hint_for("pretrain"), HasSubstr("hint: did you mean 'train pretrain'?"));
  EXPECT_THAT(hint_for("posttrain"), HasSubstr("hint: did you mean 'train posttrain'?"));
  EXPECT_THAT(hint_for("bench"), HasSubstr("hint: did you mean 'benchmark'?"));
  EXPECT_THAT(hint_for("split"), HasSubstr("hint: did you mean 'data split'?"));
  EXPECT_THAT(hint_for("xyzzy"), HasSubstr("--help' lists all of them"));
}

// Each command and option that a hint names exists.
TEST(Words, AnswersNameExistingCommands) {
  int named = 0;
  for (const std::string_view word : config::words_from_elsewhere()) {
    const std::string answer = config::answer_for(word).value();
    static const std::regex kCommand("'primus ([a-z_0-9]+)(?: ([a-z-]+))?");
    for (std::sregex_iterator at(answer.begin(), answer.end(), kCommand), end; at != end; ++at) {
      const std::string first = (*at)[1], both = first + " " + (*at)[2].str();
      const bool is_whole_group = cli::is_group(first) && !(*at)[2].matched;
      EXPECT_TRUE(cli::find_command(both) || cli::find_command(first) || cli::find_mode(first) ||
                  is_whole_group)
          << answer;
      ++named;
    }
    static const std::regex kPage("docs/[a-z]+\\.md");
    for (std::sregex_iterator at(answer.begin(), answer.end(), kPage), end; at != end; ++at)
      EXPECT_EQ(access((PRIMUS_SOURCE_DIR "/" + at->str()).c_str(), R_OK), 0) << at->str();
  }
  EXPECT_GT(named, 100);
}

TEST(Words, AnUnknownCommandAnswersJson) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"serve", "--json"}, {"eval", "hellaswag", "--json"}, {"xyzzy", "--json"}}) {
    const ProgramResult result = run_program(words);
    EXPECT_EQ(result.exit_code, 2);
    const auto json = nlohmann::json::parse(result.out);
    EXPECT_THAT(json.at("error").get<std::string>(), HasSubstr("there is no command"));
    EXPECT_EQ(json.at("exit_code"), 2);
  }
  EXPECT_EQ(run_program({"serve"}).out, "");
}

TEST(Words, UnknownOptionsAreNamed) {
  ProgramResult result = run_program({"train", "pretrain", "--model", "X", "--data", "Y"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("'--model' and '--data' are not options here"),
                                HasSubstr("--model: did you mean 'load'?"),
                                HasSubstr("--data: did you mean 'data_path'?"), HasSubstr("--config FILE")));
  result = run_program({"train", "pretrain", "--conf", "F"});
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("'--conf' is not an option here"), HasSubstr("did you mean '--config'?")));
  result = run_program({"train", "pretrain", "--lr", "1e-4"});
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("neither an experiment nor a model"), Not(HasSubstr("not an option"))));
  result = run_program({"train", "pretrain", "model=llama3.1_8B.yaml", "mock_data=true", "--dry-run"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("model=llama3.1_8B.yaml chooses the model of an experiment"),
                                HasSubstr("--config FILE"), HasSubstr("'primus model info llama3.1_8B'")));
  result = run_program({"train", "pretrain", "exp.yaml"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("'exp.yaml' is neither an option nor a setting"),
                                HasSubstr("did you mean '--config exp.yaml'?")));
  result = run_program({"train", "posttrain", "/tmp", "chats.jsonl"});
  EXPECT_THAT(result.err, HasSubstr("did you mean 'load=/tmp'?"));
  result = run_program({"generate", "X", "--temp", "1"});
  EXPECT_THAT(result.err, HasSubstr("did you mean '--template' or '--temperature'?"));
}

// Without '--', the experiment must not be read as launcher settings: the errors would be misleading.
TEST(Words, SlurmWithoutDashesGetsAHint) {
  const Said said =
      run_here({"slurm", "srun", "-N", "2", "-p", "train", "train", "pretrain", "--config", "exp.yaml"});
  EXPECT_EQ(said.exit_code, 2);
  EXPECT_EQ(said.err,
            "error: '--' is missing before 'train'\n"
            "  hint: write: primus slurm srun -N 2 -p train -- direct -- train pretrain --config exp.yaml\n");
  EXPECT_THAT(run_here({"slurm", "sbatch", "direct", "--", "version"}).err, Not(HasSubstr("is missing")));
  EXPECT_THAT(run_here({"slurm", "-N2", "container", "version"}).err,
              HasSubstr("write: primus slurm -N2 -- container version"));
}

}  // namespace
}  // namespace primus
