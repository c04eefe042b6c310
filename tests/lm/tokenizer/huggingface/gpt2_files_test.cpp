// Tests that a pair of vocab.json and merges.txt gives the ids of the equivalent tokenizer.json.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/file.h"
#include "base/temporary_folder.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kGolden = PRIMUS_SOURCE_DIR "/tests/golden/tokenizers/";

class Gpt2Files : public testing::Test {
 protected:
  void put(const std::string& name, const std::string& content) const {
    write_file(folder_.path() / name, content);
  }
  // Writes the model of a golden tokenizer.json in GPT-2's published form. Returns the whole tokenizer.json.
  json put_model_of(const std::string& name) const {
    const json whole = json::parse(std::ifstream(kGolden + name + ".tokenizer.json"));
    std::string merges = "#version: 0.2\n";
    for (const json& merge : whole["model"]["merges"]) {
      merges += merge.is_string() ? merge.get<std::string>()
                                  : merge[0].get<std::string>() + " " + merge[1].get<std::string>();
      merges += "\n";
    }
    put("vocab.json", whole["model"]["vocab"].dump());
    put("merges.txt", merges);
    return whole;
  }
  TokenizerSource files() const {
    return {.type = "GPT2BPETokenizer",
            .model = "",
            .vocab_file = folder_.path() / "vocab.json",
            .merge_file = folder_.path() / "merges.txt"};
  }
  std::unique_ptr<const Tokenizer> from_folder() const { return load_tokenizer("", folder_.path().string()); }
  static void expect_reference(const Tokenizer& tokenizer, const std::string& name) {
    static const json reference = json::parse(std::ifstream(kGolden + "reference.json"));
    ASSERT_EQ(reference.at(name).size(), 342U);
    for (const json& item : reference.at(name)) {
      const auto text = item.at("text").get<std::string>();
      const auto ids = item.at("ids").get<std::vector<std::int32_t>>();
      EXPECT_EQ(tokenizer.encode(text), ids) << text;
      EXPECT_EQ(tokenizer.decode(ids), item.at("decoded").get<std::string>()) << text;
    }
  }
  template <class Load>
  static std::string error_of(const Load& load) {
    try {
      load();
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      return error.render();
    }
    ADD_FAILURE() << "the files were accepted";
    return {};
  }
  std::string error() const {
    return error_of([this] { load_tokenizer(files()); });
  }

  const test::TemporaryFolder folder_;
};

TEST_F(Gpt2Files, EqualTheTokenizerJsonOfTheModel) {
  put_model_of("gpt2");
  const auto tokenizer = load_tokenizer(files());
  expect_reference(*tokenizer, "gpt2");
  EXPECT_EQ(tokenizer->name(), "GPT2BPETokenizer");
  EXPECT_EQ(tokenizer->special_ids().eod, tokenizer->token_id("<|endoftext|>"));
  expect_reference(*from_folder(), "gpt2");
  // The tokenizer is saved as a tokenizer.json.
  tokenizer->save(folder_.path() / "saved");
  expect_reference(*load_tokenizer("", (folder_.path() / "saved").string()), "gpt2");
  EXPECT_EQ(load_tokenizer("", (folder_.path() / "saved").string())->fingerprint(), tokenizer->fingerprint());
}

TEST_F(Gpt2Files, TheFolderDeterminesThePreTokenizer) {
  const json whole = put_model_of("qwen2");
  json config = {{"tokenizer_class", "Qwen2TokenizerFast"}, {"eos_token", "<|end_of_text|>"}};
  for (const json& token : whole["added_tokens"]) config["added_tokens_decoder"][token["id"].dump()] = token;
  put("tokenizer_config.json", config.dump());
  const auto tokenizer = from_folder();
  expect_reference(*tokenizer, "qwen2");
  EXPECT_EQ(tokenizer->special_ids().eos, tokenizer->token_id("<|end_of_text|>"));

  put("tokenizer_config.json", R"({"tokenizer_class": "RobertaTokenizer"})");
  EXPECT_THAT(error_of([this] { from_folder(); }),
              HasSubstr("the tokenizer class 'RobertaTokenizer' is not supported"));
  put("tokenizer_config.json", "{}");
  put("config.json", R"({"model_type": "bart"})");
  EXPECT_THAT(error_of([this] { from_folder(); }), HasSubstr("'bart' is not supported"));
  put("config.json", R"({"model_type": "qwen2"})");
  config.erase("tokenizer_class");
  put("tokenizer_config.json", config.dump());
  expect_reference(*from_folder(), "qwen2");
}

TEST_F(Gpt2Files, AddedTokensAndBosAreRead) {
  put("vocab.json", R"({"a": 0, "b": 1, "ab": 2, "Ġ": 3})");
  put("merges.txt", "#version: 0.2\r\na b\r\n");
  using Ids = std::vector<std::int32_t>;
  EXPECT_EQ(load_tokenizer(files())->encode("ab a<|endoftext|>"), (Ids{2, 3, 0, 4}));
  put("added_tokens.json", R"({"<x>": 5, "<pad>": 4})");
  put("special_tokens_map.json",
      R"({"pad_token": {"content": "<pad>"}, "bos_token": "<bos>", "eos_token": "<x>"})");
  put("tokenizer_config.json", R"({"add_bos_token": true, "bos_token": "<bos>"})");
  const auto tokenizer = from_folder();
  EXPECT_EQ(tokenizer->encode("ab<x>b<pad>"), (Ids{6, 2, 5, 1, 4}));
  EXPECT_EQ(tokenizer->encode("a", false), Ids{0});
  EXPECT_EQ(tokenizer->special_ids().bos, 6);
  EXPECT_EQ(tokenizer->special_ids().pad, 4);
  EXPECT_EQ(tokenizer->special_ids().eod, 5);
  EXPECT_EQ(tokenizer->decode(Ids{6, 2, 5, 4}), "ab");
}

TEST_F(Gpt2Files, MistakesAreNamed) {
  put("vocab.json", R"({"a": 0, "b": 1, "ab": 2})");
  for (const auto& [merges, said] :
       {std::pair("#version: 0.2\na b\nab\n", "merges.txt:3: error: a merge must be two"),
        {"a b\n\na b\n", "merges.txt:2: error: a merge must be two"},
        {"a b c\n", "merges.txt:1: error: a merge must be two"},
        {"a \xFF\n", "merges.txt:1: error: the merge is not UTF-8"},
        {"a c\n", "vocab.json: error: merge 0 needs the token 'c'"}}) {
    put("merges.txt", merges);
    EXPECT_THAT(error(), HasSubstr(said));
  }
  put("merges.txt", "a b\n");
  for (const auto& [vocab, said] : {std::pair("{\"a\": 0,\n \"b\"}", "vocab.json:2:5: error"),
                                    {R"({"a": 0, "b": 0, "ab": 1})", "vocab.json: error"},
                                    {R"({"a": -1, "b": 0, "ab": 1})", "vocab.json: error"},
                                    {"[]", "vocab.json:1:1: error"}}) {
    put("vocab.json", vocab);
    EXPECT_THAT(error(), HasSubstr(said));
  }
  TokenizerSource source = files();
  source.merge_file.clear();
  EXPECT_THAT(error_of([&] { load_tokenizer(source); }),
              HasSubstr("a vocabulary file is given without a merge file"));
  source = files();
  source.type = "Llama3Tokenizer";
  EXPECT_THAT(error_of([&] { load_tokenizer(source); }),
              HasSubstr("Llama3Tokenizer does not use vocab_file"));
  source = files();
  source.model = folder_.path();
  EXPECT_THAT(error_of([&] { load_tokenizer(source); }), HasSubstr("is given twice"));
}

}  // namespace
}  // namespace primus
