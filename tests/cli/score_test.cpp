// Tests of `primus data score`, called as a user calls it.
#include <string>

#include "base/files/file.h"
#include "cli/program_names.h"
#include "cli/runs.h"

namespace primus {
namespace {

class DataScore : public ::testing::Test {
 protected:
  std::string file(const std::string& text) {
    const std::string path = (folder_.path() / "answers.jsonl").string();
    write_file_atomic(path, text);
    return path;
  }
  TemporaryFolder folder_;
};

TEST_F(DataScore, PrintsRewardsMeansAndProblems) {
  const std::string answers = file(
      "{\"completion\": \"The answer is 42.\", \"answer\": \"42\"}\n\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"?\"}, {\"role\": \"assistant\", \"content\": "
      "\"41\"}], "
      "\"answer\": \"42\", \"key\": \"41\"}\n");
  const ProgramResult right = run_program({"data", "score", answers, "--reward", "number:answer"});
  EXPECT_EQ(right.exit_code, 0) << right.err;
  EXPECT_NE(right.out.find("number: mean 0.5"), std::string::npos) << right.out;
  const ProgramResult missing = run_program({"data", "score", answers, "--reward", "exact:key", "--json"});
  EXPECT_EQ(missing.exit_code, 1);
  const json line = json::parse(missing.out.substr(0, missing.out.find('\n')));
  EXPECT_TRUE(line["rewards"][0]["reward"].is_null());
  EXPECT_EQ(line["rewards"][0]["problem"], "the record has no column 'key'");
  const ProgramResult unknown = run_program({"data", "score", answers, "--reward", "exact:kye"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_NE(unknown.err.find("did you mean 'key'"), std::string::npos) << unknown.err;
}

TEST_F(DataScore, FunctionsWithoutAnyRewardHaveNoMean) {
  const std::string answers = file("{\"completion\": \"42\", \"answer\": \"42\", \"none\": null}\n");
  const ProgramResult result =
      run_program({"data", "score", answers, "--reward", "exact:answer", "exact:none"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.out.find("exact-2: no rewards for 1 answer\n"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("exact-1: mean 1"), std::string::npos) << result.out;
  EXPECT_NE(result.err.find("exact-2: no reward for 1 answer, first for answer 1 (" + answers + ":1): "),
            std::string::npos)
      << result.err;
}

TEST_F(DataScore, LengthNeedsATokenizer) {
  const std::string answers = file("{\"completion\": \"42\"}\n");
  const ProgramResult result = run_program({"data", "score", answers, "--reward", "length:4"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("reward 'length:4' counts the tokens of answers"), std::string::npos)
      << result.err;
  EXPECT_NE(result.err.find("--tokenizer"), std::string::npos) << result.err;
}

TEST_F(DataScore, ProblemsHaveTheOrderOfTheirFirstAnswers) {
  const std::string answers = file(
      "{\"completion\": \"1\", \"answer\": \"1\"}\n{\"completion\": \"2\"}\n"
      "{\"completion\": \"3\", \"answer\": null}\n");
  const ProgramResult result = run_program({"data", "score", answers, "--reward", "exact:answer"});
  EXPECT_EQ(result.exit_code, 1);
  const std::size_t second = result.err.find("answer 2 ("), third = result.err.find("answer 3 (");
  ASSERT_NE(third, std::string::npos) << result.err;
  EXPECT_LT(second, third) << result.err;
}

// The results of 'primus generate --prompts', and a list as in the key 'reward'.
TEST_F(DataScore, ReadsGeneratedTextsAndAListOfFunctions) {
  const std::string answers = file(
      "{\"index\": 0, \"prompt\": \"6*7=\", \"text\": \"42\", \"answer\": \"42\", \"stop_reason\": "
      "\"max_tokens\"}\n");
  for (const std::vector<std::string>& given :
       std::vector<std::vector<std::string>>{{"number:answer", "regex:^4"},
                                             {"[number:answer, regex:^4]"},
                                             {"[number:answer]", "regex:^4"},
                                             {"[number:answer, \"regex:^4[2,3]\"]"}}) {
    std::vector<std::string> words = {"data", "score", answers, "--reward"};
    words.insert(words.end(), given.begin(), given.end());
    const ProgramResult result = run_program(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.out.find("number: mean 1"), std::string::npos) << result.out;
    EXPECT_NE(result.out.find("regex: mean 1"), std::string::npos) << result.out;
  }
}

TEST_F(DataScore, InvalidInputHasExitCode2) {
  for (const char* text : {"", "[1]\n", "{\"completion\": 3}\n", "{\"text\": 7}\n", "{\"answer\": \"a\"}\n",
                           "{\"completion\": \"a\"\n", "{\"completion\": \"a\", \"finished\": 3}\n",
                           "{\"completoin\": \"a\"}\n"}) {
    const ProgramResult result = run_program({"data", "score", file(text), "--reward", "exact:a"});
    EXPECT_EQ(result.exit_code, 2) << text;
    EXPECT_NE(result.err.find("answers.jsonl"), std::string::npos) << result.err;
  }
  EXPECT_EQ(
      run_program({"data", "score", file("{\"completion\": \"a\"}\n"), "--reward", "exakt:a"}).exit_code, 2);
  EXPECT_EQ(run_program({"data", "score", "missing.jsonl", "--reward", "exact:a"}).exit_code, 2);
}

}  // namespace
}  // namespace primus
