// What the program says about itself. The texts lie in tests/cli/golden; after a wanted change
// PRIMUS_UPDATE_GOLDEN=1 writes them anew.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/commands.h"
#include "cli/program.h"

namespace primus {
namespace {

using test::ProgramResult;
using test::run_program;
using ::testing::HasSubstr;

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

TEST(Help, OfTheProgram) {
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

TEST(Help, OfEveryCommand) {
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

TEST(Help, OfAGroup) {
  for (const char* group : {"train", "model", "config", "data", "eval", "benchmark"}) {
    const ProgramResult help = run_program({group});
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_THAT(help.out, HasSubstr(std::string(group) + " "));
  }
}

TEST(Help, WidthFitsATerminal) {
  for (const auto& file : std::filesystem::directory_iterator(PRIMUS_SOURCE_DIR "/tests/cli/golden")) {
    std::ifstream text(file.path());
    for (std::string line; std::getline(text, line);)
      EXPECT_LE(line.size(), 120U) << file.path() << ": " << line;
  }
}

TEST(Version, IsOneLine) {
  const ProgramResult version = run_program({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.out, ::testing::MatchesRegex("primus [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

}  // namespace
}  // namespace primus
