// Tests several adapters on one base model (--adapters) in `primus generate`, `chat` and `eval loss`.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "base/temporary_folder.h"
#include "cli/program.h"

namespace primus {
namespace {

using nlohmann::json;
using test::ProgramResult;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const std::string kPeftFolder = std::string(PRIMUS_SOURCE_DIR) + "/tests/golden/peft/";
const std::string kPeftBase = kPeftFolder + "model/policy";

class SeveralAdapters : public ::testing::Test {
 protected:
  // Copies PEFT folders, which then name their base model, so that commands accept them as a model.
  SeveralAdapters() {
    for (const char* name : {"lora", "dora"}) {
      const Path folder = folder_.path() / name;
      std::filesystem::copy(kPeftFolder + "peft/" + name, folder);
      json settings = json::parse(read_file(folder / "adapter_config.json"));
      settings["base_model_name_or_path"] = kPeftBase;
      write_file(folder / "adapter_config.json", settings.dump());
    }
  }
  std::string at(const char* name) const { return (folder_.path() / name).string(); }
  // Runs a command with a model whose tokens are numbers.
  ProgramResult run(std::vector<std::string> words, const std::string& input = "") const {
    words.insert(words.end(), {"--tokenizer-type", "NullTokenizer", "--tokenizer", "199"});
    return test::run_program(words, {.folder = folder_.path().string(), .input = input});
  }
  std::vector<json> lines(const ProgramResult& result) const {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return parsed(result.out);
  }
  static std::vector<json> parsed(const std::string& out) {
    std::vector<json> all;
    std::istringstream text(out);
    for (std::string line; std::getline(text, line);) all.push_back(json::parse(line));
    return all;
  }
  // Returns "INDEX MODEL" of each result.
  static std::vector<std::string> sources_of(const std::vector<json>& results) {
    std::vector<std::string> sources;
    for (const json& result : results)
      sources.push_back(
          fmt::format("{} {}", result.at("index").get<int>(), result.at("adapter").get<std::string>()));
    return sources;
  }
  // The options that load both adapters.
  std::vector<std::string> both(std::vector<std::string> words) const {
    words.insert(words.end(), {"--adapters", "a=" + at("lora"), "b=" + at("dora")});
    return words;
  }

  test::TemporaryFolder folder_;
};

TEST_F(SeveralAdapters, EachModelAnswersAPrompt) {
  const std::vector<std::string> how = {"-p", "1 2 3", "-n", "8", "--seed", "4", "--json"};
  std::vector<std::string> words = both({"generate", kPeftBase});
  words.insert(words.end(), how.begin(), how.end());
  const std::vector<json> answers = lines(run(words));
  ASSERT_EQ(answers.size(), 3U);
  const std::vector<std::pair<std::string, std::string>> alone = {
      {"base", kPeftBase}, {"a", at("lora")}, {"b", at("dora")}};
  for (std::size_t i = 0; i < alone.size(); ++i) {
    EXPECT_EQ(answers[i].at("adapter"), alone[i].first);
    std::vector<std::string> single = {"generate", alone[i].second};
    single.insert(single.end(), how.begin(), how.end());
    const ProgramResult result = run(single);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(answers[i].at("ids"), json::parse(result.out).at("ids")) << alone[i].first;
    EXPECT_FALSE(json::parse(result.out).contains("adapter"));
  }
  EXPECT_NE(answers[0].at("ids"), answers[1].at("ids"));
  words.insert(words.end(), {"--adapter", "b", "--adapter", "base"});
  const std::vector<json> chosen = lines(run(words));
  ASSERT_EQ(chosen.size(), 2U);
  EXPECT_EQ(chosen[0].at("ids"), answers[2].at("ids"));
  EXPECT_EQ(chosen[1].at("ids"), answers[0].at("ids"));
  const ProgramResult text = run(both({"generate", kPeftBase, "-p", "1 2 3", "-n", "1"}));
  EXPECT_THAT(text.out, AllOf(HasSubstr("[base]\n1 2 3"), HasSubstr("[a]\n1 2 3"), HasSubstr("[b]\n1 2 3")));
}

// The texts of a model are those that it generates from its own prompts without the others, in a batch of the
// same size.
TEST_F(SeveralAdapters, PromptsOfAFileChooseTheirModels) {
  std::string all, of_b;
  for (int i = 0; i < 8; ++i) {
    const std::string begin = fmt::format("{{\"prompt\": \"{} 7 9\", \"seed\": {}", i + 1, 50 + i);
    const bool b = i % 3 == 1;
    all += begin + (b ? ", \"adapter\": \"b\"}\n" : i == 3 ? ", \"adapter\": \"base\"}\n" : "}\n");
    if (b) of_b += begin + "}\n";
  }
  write_file(folder_.path() / "all.jsonl", all);
  write_file(folder_.path() / "of_b.jsonl", of_b);
  std::vector<std::string> words =
      both({"generate", kPeftBase, "--prompts", "all.jsonl", "-n", "6", "--batch", "2"});
  const std::vector<json> usual = lines(run(words));
  words.insert(words.end(), {"--adapter", "a"});
  const std::vector<json> answers = lines(run(words));
  const std::vector<json> alone =
      lines(run({"generate", at("dora"), "--prompts", "of_b.jsonl", "-n", "6", "--batch", "2"}));
  ASSERT_EQ(answers.size(), 8U);
  ASSERT_EQ(alone.size(), 3U);
  EXPECT_THAT(sources_of(answers), ElementsAre("3 base", "0 a", "2 a", "5 a", "6 a", "1 b", "4 b", "7 b"));
  for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_EQ(answers[5 + i].at("ids"), alone[i].at("ids"));
  // Without --adapter, a prompt without a name has the answers of all models, one model after the other.
  ASSERT_EQ(usual.size(), 4U + 4 * 3);
  EXPECT_THAT(sources_of(usual), ElementsAre("0 base", "2 base", "3 base", "5 base", "6 base", "0 a", "2 a",
                                             "5 a", "6 a", "0 b", "1 b", "2 b", "4 b", "5 b", "6 b", "7 b"));
}

// The last model has a weight that is not a number.
TEST_F(SeveralAdapters, ResultsBeforeAnErrorAreKept) {
  const Path weights = Path(at("dora")) / "adapter_model.safetensors";
  std::string bytes = read_file(weights);
  bytes.replace(bytes.size() - 4, 4, "\xff\xff\xff\x7f");
  write_file(weights, bytes);
  write_file(folder_.path() / "all.jsonl", "\"1 2 3\"\n\"4 5\"\n\"6\"\n");
  const ProgramResult texts =
      run(both({"generate", kPeftBase, "--prompts", "all.jsonl", "-n", "4", "--batch", "2"}));
  EXPECT_EQ(texts.exit_code, 3) << texts.err;
  EXPECT_THAT(sources_of(parsed(texts.out)), ElementsAre("0 base", "1 base", "2 base", "0 a", "1 a", "2 a"));
  write_file(folder_.path() / "text.txt", "1 2 3 4 5 6 7 8 9 10");
  const ProgramResult losses = run(both({"eval", "loss", kPeftBase, "--data", "text.txt", "--json"}));
  EXPECT_EQ(losses.exit_code, 3) << losses.err;
  const std::vector<json> results = parsed(losses.out);
  ASSERT_EQ(results.size(), 3U);
  EXPECT_EQ(results[0].at("adapter"), "base");
  EXPECT_EQ(results[1].at("adapter"), "a");
  EXPECT_TRUE(results[2].contains("error")) << results[2];
}

TEST_F(SeveralAdapters, LossesAreThoseOfTheAdaptersAlone) {
  write_file(folder_.path() / "text.txt", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20");
  const std::vector<json> together =
      lines(run(both({"eval", "loss", kPeftBase, "--data", "text.txt", "--json"})));
  ASSERT_EQ(together.size(), 3U);
  std::size_t i = 0;
  for (const std::string& model : {kPeftBase, at("lora"), at("dora")}) {
    const ProgramResult alone = run({"eval", "loss", model, "--data", "text.txt", "--json"});
    ASSERT_EQ(alone.exit_code, 0) << alone.err;
    EXPECT_EQ(together[i++].at("loss"), json::parse(alone.out).at("loss"));
  }
  EXPECT_NE(together[0].at("loss"), together[2].at("loss"));
  EXPECT_THAT(run(both({"eval", "loss", kPeftBase, "--data", "text.txt"})).out,
              AllOf(HasSubstr("[base]\nloss "), HasSubstr("\n[b]\nloss ")));
}

TEST_F(SeveralAdapters, AChatChangesTheModel) {
  const auto chat = [&](const std::string& input, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"chat", kPeftBase, "-t", "0", "-n", "4", "--template", "plain"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words, input);
  };
  const ProgramResult result = chat("/adapter\n/adapter b\n/adapter c\n/adapter base\n",
                                    {"--adapters", "b=" + at("dora"), "--adapter", "b"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("b answers; /adapter NAME changes the model: base, b\n"),
                                HasSubstr("there are no adapters 'c'; the names are base, b\n"),
                                HasSubstr("base answers\n")));
  EXPECT_THAT(chat("/adapter b\n", {}).err, HasSubstr("there is one model"));
}

TEST_F(SeveralAdapters, WrongNamesAndFoldersAreRefused) {
  const auto refused = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"generate", kPeftBase, "-p", "1", "-n", "1"});
    const ProgramResult result = run(words);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    EXPECT_EQ(result.out, "");
    return result.err;
  };
  const std::string lora = at("lora");
  EXPECT_THAT(refused({"--adapters", lora}), HasSubstr("write NAME=FOLDER"));
  EXPECT_THAT(refused({"--adapters", "a="}), HasSubstr("write NAME=FOLDER"));
  EXPECT_THAT(refused({"--adapters", "a b=" + lora}), HasSubstr("write NAME=FOLDER"));
  EXPECT_THAT(refused({"--adapters", "base=" + lora}), HasSubstr("is that of MODEL without adapters"));
  EXPECT_THAT(refused({"--adapters", "a=" + lora, "a=" + at("dora")}), HasSubstr("the name 'a' twice"));
  EXPECT_THAT(refused({"--adapters", "a=" + at("nowhere")}), HasSubstr("does not exist"));
  EXPECT_THAT(refused({"--adapters", "a=" + kPeftBase}), HasSubstr("is a model without adapters"));
  EXPECT_THAT(refused({"--adapters", "a=" + lora, "--adapter", "b"}),
              AllOf(HasSubstr("there are no adapters 'b'"), HasSubstr("the names are base, a")));
  EXPECT_THAT(refused({"--adapter", "a"}),
              AllOf(HasSubstr("there are no adapters 'a'"), HasSubstr("--adapters a=FOLDER")));
  EXPECT_THAT(refused({"--adapters", "a=" + lora, "--adapter", "a", "base"}),
              HasSubstr("write the option once for each value: --adapter a --adapter base"));
  const ProgramResult twice = run({"generate", lora, "-p", "1", "--adapters", "b=" + at("dora")});
  EXPECT_EQ(twice.exit_code, 2);
  EXPECT_THAT(twice.err, AllOf(HasSubstr("has adapters itself"), HasSubstr("give their base model")));
  write_file(folder_.path() / "prompts.jsonl", "\"1\"\n{\"prompt\": \"1\", \"adapter\": \"c\"}\n");
  const ProgramResult line = run(both({"generate", kPeftBase, "--prompts", "prompts.jsonl"}));
  EXPECT_EQ(line.exit_code, 2);
  EXPECT_THAT(line.err, AllOf(HasSubstr("prompts.jsonl:2: error: there are no adapters 'c'"),
                              HasSubstr("the names are base, a, b")));
  EXPECT_THAT(line.err, Not(HasSubstr("tokens/s")));
}

}  // namespace
}  // namespace primus
