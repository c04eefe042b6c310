// Tests that the loader's messages on typical mistakes are also printed as JSON. tests/config has all
// mistakes.
#include "config/mistakes.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "base/temporary_folder.h"
#include "cli/program.h"

namespace primus {
namespace {

using nlohmann::json;

TEST(MistakesAsJson, HaveLocationCauseAndNextStep) {
  const test::TemporaryFolder folder;
  const test::ProgramOptions options{.folder = folder.path().string()};
  int number = 0;
  for (const config::Mistake& mistake : config::typical_mistakes()) {
    if (number++ % 5 != 0) continue;
    write_file_atomic(folder.path() / "exp.yaml", mistake.file);
    std::vector<std::string> words = {"config", "validate", "--config", "exp.yaml", "--json"};
    words.insert(words.end(), mistake.arguments.begin(), mistake.arguments.end());
    SCOPED_TRACE(mistake.cause);
    const test::ProgramResult result = test::run_program(words, options);
    EXPECT_EQ(result.exit_code, 2) << result.out << result.err;
    const json verdict = json::parse(result.out, nullptr, false);
    ASSERT_TRUE(verdict.is_object()) << result.out << result.err;
    EXPECT_EQ(verdict["valid"], false);
    ASSERT_EQ(verdict["problems"].size(), 1u) << verdict.dump(2);
    const json& problem = verdict["problems"][0];
    EXPECT_EQ(problem["location"], mistake.place);
    EXPECT_NE(problem["error"].get<std::string>().find(mistake.cause), std::string::npos) << problem;
    EXPECT_NE(problem["hint"].get<std::string>().find(mistake.next_step), std::string::npos) << problem;
  }
}

TEST(MistakesAsJson, ListAllMistakes) {
  const test::TemporaryFolder folder;
  write_file_atomic(folder.path() / "exp.yaml",
                    config::with_lines("      lrr: 1\n      seed: x\n      moe_router_dtype: fp64\n"));
  const test::ProgramResult result =
      test::run_program({"config", "validate", "--config", "exp.yaml", "--json", "bf16=maybe"},
                        {.folder = folder.path().string()});
  EXPECT_EQ(result.exit_code, 2);
  const json verdict = json::parse(result.out);
  EXPECT_EQ(verdict["error"], "the settings have 4 problems");
  std::vector<std::string> places, kinds;
  for (const json& problem : verdict["problems"]) {
    places.push_back(problem["location"]);
    kinds.push_back(problem["kind"]);
    EXPECT_NE(problem["hint"], "");
  }
  EXPECT_EQ(places,
            (std::vector<std::string>{"exp.yaml:14:7", "exp.yaml:15:13", "exp.yaml:16:25", "command line"}));
  EXPECT_EQ(kinds, (std::vector<std::string>{"invalid", "invalid", "unsupported", "invalid"}));
}

TEST(MistakesAsJson, IncludeOptions) {
  const std::vector<std::string> mistakes[] = {{"generate", "model", "--temperature", "x", "--json"},
                                               {"generate", "model", "--json", "--temprature", "1"},
                                               {"generate", "--json"},
                                               {"model", "info", "model", "--json", "--optimizer"}};
  for (const std::vector<std::string>& words : mistakes) {
    const test::ProgramResult result = test::run_program(words);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    const json problem = json::parse(result.out, nullptr, false);
    ASSERT_TRUE(problem.is_object()) << words.back() << result.out << result.err;
    EXPECT_EQ(problem["exit_code"], 2);
    EXPECT_NE(problem["hint"], "") << problem;
    EXPECT_NE(result.err.find(problem["error"].get<std::string>()), std::string::npos) << result.err;
  }
  const std::string many = test::run_program({"train", "pretrain", "--nproc", "100000"}).err;
  EXPECT_NE(many.find("hint: choose 1 to 4096"), std::string::npos) << many;
  EXPECT_EQ(test::run_program({"generate", "model", "--temperature", "x"}).out, "");
  // `completion` has no JSON output.
  EXPECT_EQ(test::run_program({"completion", "nosuchshell", "--json"}).out, "");
}

}  // namespace
}  // namespace primus
