// Tests of the help texts, the manual and the version. The expected texts are in tests/cli/golden;
// PRIMUS_UPDATE_GOLDEN=1 rewrites them.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "base/files/file.h"
#include "cli/command.h"
#include "cli/launch/mode.h"
#include "cli/parse.h"
#include "cli/program_names.h"

namespace primus {
namespace {

void expect_golden(const std::string& text, const std::string& name) {
  const std::string path = PRIMUS_SOURCE_DIR "/tests/cli/golden/" + name;
  if (std::getenv("PRIMUS_UPDATE_GOLDEN")) {
    std::ofstream(path) << text;
    return;
  }
  std::ostringstream expected;
  expected << std::ifstream(path).rdbuf();
  EXPECT_EQ(text, expected.str()) << path;
}

TEST(Help, DescribesTheProgram) {
  const ProgramResult help = run_program({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_EQ(help.err, "");
  expect_golden(help.out, "help.txt");
  for (const std::vector<std::string>& words : {std::vector<std::string>{}, {"-h"}, {"help"}, {"--debug"}}) {
    const ProgramResult same = run_program(words);
    EXPECT_EQ(same.exit_code, 0);
    EXPECT_EQ(same.out, help.out);
  }
}

TEST(Help, DescribesEveryCommand) {
  for (const cli::CommandEntry& entry : cli::commands()) {
    std::vector<std::string> words;
    std::istringstream name{std::string(entry.name)};
    for (std::string word; name >> word;) words.push_back(word);
    std::string file = std::string(entry.name) + ".txt";
    std::replace(file.begin(), file.end(), ' ', '_');
    words.emplace_back("--help");
    const ProgramResult help = run_program(words);
    EXPECT_EQ(help.exit_code, 0) << entry.name;
    expect_golden(help.out, file);
    EXPECT_THAT(help.out, HasSubstr("Examples:")) << entry.name;
    words.insert(words.begin(), "help");
    words.pop_back();
    EXPECT_EQ(run_program(words).out, help.out);
  }
}

TEST(Help, DescribesAGroup) {
  for (const char* group : {"train", "model", "config", "data", "eval", "benchmark", "plan"}) {
    const ProgramResult help = run_program({group});
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_THAT(help.out, HasSubstr(std::string(group) + " "));
  }
}

// Expects that lines fit into `width`, except example lines, which are not wrapped so that they can be
// copied.
void expect_width(const std::string& help, std::size_t width) {
  std::istringstream text(help.substr(0, help.find("\nExamples:\n")));
  for (std::string line; std::getline(text, line);) {
    const bool can_break = line.find(' ', line.find_first_not_of(' ')) != std::string::npos;
    if (!can_break) continue;  // one long word
    EXPECT_LE(line.size(), width) << line;
  }
}

TEST(Help, FitsTheTerminal) {
  for (const auto& [columns, width] :
       std::map<std::size_t, std::size_t>{{70, 70}, {80, 80}, {100, 100}, {300, 100}}) {
    expect_width(cli::overview_text("primus", columns), width);
    for (const char* group : {"train", "model", "benchmark"})
      expect_width(cli::group_help_text(group, "primus", columns), width);
    for (const cli::CommandEntry& entry : cli::commands()) {
      const auto command = entry.make();
      cli::Arguments arguments;
      command->declare(arguments);
      expect_width(cli::help_text(entry, arguments, "primus", columns), width);
    }
    for (const cli::ModeEntry& mode : cli::modes()) {
      cli::Arguments arguments;
      const cli::DeclaredMode declared = cli::declare(mode, arguments);
      expect_width(cli::help_text(mode.about, arguments, "primus", columns), width);
    }
  }
  // A pipe has no width, so 80 columns are used.
  expect_width(run_program({"train", "pretrain", "--help"}).out, 80);
}

TEST(Help, DescribesTheModes) {
  for (const cli::ModeEntry& mode : cli::modes()) {
    const std::string name(mode.about.name);
    const ProgramResult help = run_program({name, "--help"});
    EXPECT_EQ(help.exit_code, 0);
    expect_golden(help.out, name + ".txt");
    EXPECT_THAT(help.out, HasSubstr("Examples:"));
    EXPECT_EQ(run_program({"help", name}).out, help.out);
  }
}

TEST(Help, NamesOnlyExistingCommands) {
  const std::string help = run_program({"--help"}).out;
  for (const char* missing : {"megatron"}) EXPECT_THAT(help, Not(HasSubstr(missing)));
}

// The program starts fast, because completion and scripts start it often.
TEST(Help, IsFast) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers take longer to start";
#endif
  double best = 1e9;
  for (int i = 0; i < 20; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run_program({"--help"});
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  EXPECT_LE(best, 0.020);
}

TEST(Help, DocumentsAllCommands) {
  expect_golden(run_program({"man", "--markdown"}).out, "../../../docs/commands.md");
}

TEST(Manual, HasPagesForAllCommands) {
  test::TemporaryFolder folder;
  const std::string man1 = (folder.path() / "man1").string();
  const ProgramResult written = run_program({"man", "--output", man1});
  EXPECT_EQ(written.exit_code, 0) << written.err;
  std::size_t pages = 0;
  for (const auto& file : std::filesystem::directory_iterator(man1)) pages += file.is_regular_file();
  EXPECT_EQ(pages, cli::commands().size() + cli::modes().size() + 1);
  const std::string page = read_file(Path(man1) / "primus-train-pretrain.1");
  EXPECT_EQ(run_program({"man", "train-pretrain"}).out, page);
  EXPECT_EQ(run_program({"man", "train", "pretrain"}).out, page);
  EXPECT_EQ(run_program({"man"}).out, read_file(Path(man1) / "primus.1"));
  for (const char* part : {".SH SYNOPSIS", ".SH DESCRIPTION", ".SH OPTIONS", ".SH EXAMPLES", "\\-\\-config"})
    EXPECT_THAT(page, HasSubstr(part));
}

// mandoc finds no errors or warnings in the manual pages; hints on style are accepted.
TEST(Manual, LintFindsNothing) {
  if (std::system("command -v mandoc >/dev/null 2>&1") != 0) GTEST_SKIP() << "mandoc is not installed";
  test::TemporaryFolder folder;
  ASSERT_EQ(run_program({"man", "--output", folder.path().string()}).exit_code, 0);
  const std::string lint = "mandoc -Tlint -Wwarning '" + folder.path().string() + "'/*.1";
  EXPECT_EQ(std::system(lint.c_str()), 0);
  const std::string shown = folder.path().string() + "/shown";
  ASSERT_EQ(std::system(
                ("mandoc -Tutf8 '" + folder.path().string() + "/primus-chat.1' | col -b > " + shown).c_str()),
            0);
  EXPECT_THAT(read_file(shown), HasSubstr("primus chat output/primus/root/quickstart"));
  EXPECT_THAT(read_file(shown), HasSubstr("--temperature, -t X"));
}

TEST(Version, AsJson) {
  const ProgramResult version = run_program({"version", "--json"});
  EXPECT_EQ(version.exit_code, 0);
  const auto json = nlohmann::json::parse(version.out);
  EXPECT_EQ("primus " + json.at("version").get<std::string>() + "\n", run_program({"--version"}).out);
  EXPECT_EQ(run_program({"version"}).out, run_program({"--version"}).out);
  for (const char* key : {"compiler", "build_type", "glibc", "cpu_kernels", "system"})
    EXPECT_FALSE(json.at(key).get<std::string>().empty()) << key;
  const auto built = json.at("cpu_kernels_built").get<std::vector<std::string>>();
  EXPECT_THAT(built, ::testing::Contains(json.at("cpu_kernels").get<std::string>()));
}

TEST(Version, IsOneLine) {
  const ProgramResult version = run_program({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.out, ::testing::MatchesRegex("primus [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

}  // namespace
}  // namespace primus
