#include "lm/tokenizer/huggingface/huggingface.h"

#include <gmock/gmock.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/files/file.h"
#include "base/temporary_folder.h"
#include "lm/tokenizer/simple.h"

namespace primus {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

const std::string kGolden = PRIMUS_SOURCE_DIR "/tests/golden/tokenizers/";

json golden(const std::string& name) {
  return json::parse(std::ifstream(kGolden + name + ".tokenizer.json"));
}

std::unique_ptr<const Tokenizer> load(const json& tokenizer) {
  HuggingFaceFiles files;
  files.tokenizer_json = tokenizer.dump();
  return make_huggingface_tokenizer(std::move(files), "HuggingFaceTokenizer");
}

std::string error_of(const json& tokenizer) {
  try {
    load(tokenizer);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.render();
  }
  ADD_FAILURE() << "the file was accepted";
  return "";
}

// Returns a character-level BPE of letters and a few merges, with the given stages.
json small(const json& changes = json::object()) {
  json vocabulary = {{"<unk>", 0},
                     {"\xE2\x96\x81", 1},
                     {"a", 2},
                     {"b", 3},
                     {"ab", 4},
                     {"\xE2\x96\x81"
                      "ab",
                      5},
                     {"<0xC3>", 6},
                     {"<0xA9>", 7}};
  json tokenizer = {{"version", "1.0"},
                    {"added_tokens", json::array()},
                    {"normalizer", nullptr},
                    {"pre_tokenizer", nullptr},
                    {"post_processor", nullptr},
                    {"decoder", nullptr},
                    {"model",
                     {{"type", "BPE"},
                      {"unk_token", "<unk>"},
                      {"vocab", vocabulary},
                      {"merges", {"a b", "\xE2\x96\x81 ab"}}}}};
  tokenizer.merge_patch(changes);
  return tokenizer;
}

TEST(HuggingFace, LongRunsAreEncodedFast) {
  for (const char* name : {"gpt2", "llama3", "qwen2"}) {
    const auto tokenizer = load_tokenizer("", kGolden + name + ".tokenizer.json");
    for (const std::string unit :
         {"a", " ", "\n", "1", ".", "\xE4\xB8\xAD", "\xCC\x81\xCC\xA3", "a\xCC\x81", "'s", "\xF0\x9F\x98\x80",
          "\xFF", " \n", "\xE2\x80\x8D", "A", "<|endoftext|", "\xC4\xB0"}) {
      std::string text;
      while (text.size() < 1 << 18) text += unit;
      const auto begin = std::chrono::steady_clock::now();
      const Ids ids = tokenizer->encode(text);
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      // An algorithm of quadratic time would need minutes. The limit allows for a busy machine.
      EXPECT_LT(seconds.count(), 10) << name << " " << unit;
      EXPECT_FALSE(ids.empty());
    }
  }
}

TEST(HuggingFace, InvalidUtf8BecomesReplacementCharacters) {
  const auto tokenizer = load(golden("llama3"));
  EXPECT_EQ(tokenizer->encode("a\xFF"
                              "b\xE2\x82"),
            tokenizer->encode("a\xEF\xBF\xBD"
                              "b\xEF\xBF\xBD"));
  // An incomplete character decodes to one U+FFFD.
  const Ids ids = tokenizer->encode("\xF0\x9F\x98\x80", false);
  EXPECT_EQ(tokenizer->decode(Ids(ids.begin(), ids.end() - 1)), "\xEF\xBF\xBD");
}

TEST(HuggingFace, IsThreadSafe) {
  const auto tokenizer = load(golden("qwen2"));
  const std::string text = "The quick brown fox; 12345 \xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E, cafe\xCC\x81";
  const Ids expected = tokenizer->encode(text);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) EXPECT_EQ(tokenizer->encode(text), expected);
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(HuggingFace, AddedTokensOptions) {
  json tokenizer = golden("gpt2");
  const int32_t id = static_cast<int32_t>(tokenizer["model"]["vocab"].size());
  tokenizer["added_tokens"].push_back({{"id", id}, {"content", "<x>"}, {"lstrip", true}, {"rstrip", true}});
  tokenizer["added_tokens"].push_back({{"id", id + 1}, {"content", "<x><y>"}});
  tokenizer["added_tokens"].push_back({{"id", id + 2}, {"content", "cat"}, {"single_word", true}});
  const auto loaded = load(tokenizer);
  const auto text_of = [&](const std::string& text) {
    std::string result;
    for (const int32_t token : loaded->encode(text))
      result.append("[").append(loaded->token_text(token)).append("]");
    return result;
  };
  EXPECT_EQ(text_of("! <x> !"), "[!][<x>][!]");
  EXPECT_EQ(text_of("!<x><y>!"), "[!][<x><y>][!]") << "the longest token must match";
  EXPECT_EQ(text_of("!cat!"), "[!][cat][!]");
  EXPECT_THAT(text_of("concat"), testing::Not(HasSubstr("[cat]")));
  EXPECT_EQ(loaded->vocab_size(), id + 3);
}

// Expected ids come from the tokenizers library (0.23).
TEST(HuggingFace, AddedTokensGetTheModelsIdOrTheNext) {
  const json added = {{{"id", 8}, {"content", "<a>"}},
                      {{"id", 50}, {"content", "<gap>"}},
                      {{"id", 9}, {"content", "<late>"}},
                      {{"id", 60}, {"content", "ab"}},
                      {{"id", 70}, {"content", "<a>"}, {"special", true}}};
  const auto tokenizer = load(small({{"added_tokens", added}}));
  EXPECT_EQ(tokenizer->encode("a<a>b<gap><late>abab"), (Ids{2, 8, 3, 9, 10, 4, 4}));
  EXPECT_EQ(tokenizer->vocab_size(), 11);
  EXPECT_TRUE(tokenizer->is_special(8)) << "the last flags must apply";
  ASSERT_EQ(tokenizer->notes().size(), 1u);
  EXPECT_THAT(tokenizer->notes()[0],
              HasSubstr("4 added tokens have other ids than the file says, as in the tokenizers library: "
                        "'<gap>' has 9, not 50, ..."));
}

// Expected ids come from transformers (5.24).
TEST(HuggingFace, TokenizerConfigAddsTokens) {
  HuggingFaceFiles files;
  files.tokenizer_json = small().dump();
  const auto plain = make_huggingface_tokenizer(files, "x");
  files.tokenizer_config_json =
      R"({"eos_token": "<end>", "added_tokens_decoder": {"9": {"content": "<tool>", "special": false},)"
      R"( "8": {"content": "<start>", "special": true}}, "additional_special_tokens": ["<more>", "<start>"]})";
  const auto tokenizer = make_huggingface_tokenizer(files, "x");
  EXPECT_EQ(tokenizer->encode("<start>a<tool><end>b<more>"), (Ids{8, 2, 9, 10, 3, 11}));
  EXPECT_EQ(tokenizer->special_ids().eos, 10);
  EXPECT_EQ(tokenizer->decode(Ids{8, 2, 9, 10}), "a <tool>");
  EXPECT_NE(tokenizer->fingerprint(), plain->fingerprint());
  // If the config has no added_tokens_decoder, two older files apply.
  files.tokenizer_config_json = "{}";
  files.added_tokens_json = R"({"<start>": 8, "<tool>": 9})";
  files.special_tokens_map_json = R"({"eos_token": {"content": "<start>"}, "pad_token": "b"})";
  const auto older = make_huggingface_tokenizer(files, "x");
  EXPECT_EQ(older->encode("<start>a<tool>b"), (Ids{8, 2, 9, 3}));
  EXPECT_TRUE(older->is_special(8));
  EXPECT_FALSE(older->is_special(9));
  EXPECT_EQ(older->special_ids().pad, 3);
  for (const auto& [config, said] :
       {std::pair(R"({"added_tokens_decoder": {"x": {"content": "a"}}})",
                  "tokenizer_config.json: error: its added "),
        {R"({"added_tokens_decoder": [1]})", "tokenizer_config.json: error: its added_tokens_decoder is not"},
        {"{\n?", "tokenizer_config.json:2:1: error"}}) {
    files.tokenizer_config_json = config;
    try {
      make_huggingface_tokenizer(files, "x");
      ADD_FAILURE() << config;
    } catch (const Error& error) {
      EXPECT_THAT(error.render(), HasSubstr(said));
    }
  }
}

TEST(HuggingFace, SentencePieceStyleStages) {
  const std::string mark = "\xE2\x96\x81";
  const json normalizer = {{"normalizer",
                            {{"type", "Sequence"},
                             {"normalizers",
                              {{{"type", "Prepend"}, {"prepend", mark}},
                               {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", mark}}}}}},
                           {"decoder",
                            {{"type", "Sequence"},
                             {"decoders",
                              {{{"type", "Replace"}, {"pattern", {{"String", mark}}}, {"content", " "}},
                               {{"type", "ByteFallback"}},
                               {{"type", "Fuse"}},
                               {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
                           {"model", {{"byte_fallback", true}}}};
  const auto tokenizer = load(small(normalizer));
  EXPECT_EQ(tokenizer->encode("ab a\xC3\xA9"), (Ids{5, 1, 2, 6, 7}));
  EXPECT_EQ(tokenizer->decode(Ids{5, 1, 2, 6, 7}), "ab a\xC3\xA9");
  EXPECT_EQ(tokenizer->decode(Ids{5, 6, 2}),
            "ab\xEF\xBF\xBD"
            "a");
  EXPECT_EQ(tokenizer->encode("z"), (Ids{1, 0})) << "z must be unknown, as it has no byte token";

  const auto metaspace = load(
      small({{"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", mark}, {"prepend_scheme", "first"}}},
             {"decoder", {{"type", "Metaspace"}, {"replacement", mark}, {"prepend_scheme", "always"}}}}));
  EXPECT_EQ(metaspace->encode("ab ab"), (Ids{5, 5}));
  EXPECT_EQ(metaspace->decode(Ids{5, 5}), "ab ab");
}

TEST(HuggingFace, UnknownTokensAreFusedOnRequest) {
  EXPECT_EQ(load(small())->encode("azzb"), (Ids{2, 0, 0, 3}));
  EXPECT_EQ(load(small({{"model", {{"fuse_unk", true}}}}))->encode("azzb"), (Ids{2, 0, 3}));
  EXPECT_EQ(load(small({{"model", {{"unk_token", nullptr}}}}))->encode("azzb"), (Ids{4}))
      << "unknown characters must be dropped";
}

TEST(HuggingFace, ACharacterFallsBackToAllOfItsBytesOrNone) {
  const std::string text = "a\xC3\xA9";
  json tokenizer = small({{"model", {{"byte_fallback", true}}}});
  EXPECT_EQ(load(tokenizer)->encode(text), (Ids{2, 6, 7}));
  tokenizer["model"]["vocab"].erase("<0xA9>");
  EXPECT_EQ(load(tokenizer)->encode(text), (Ids{2, 0}));
}

TEST(HuggingFace, IgnoreMergesTakesWholeWords) {
  json tokenizer = golden("gpt2");
  const auto merged = load(tokenizer)->encode("Hello", false);
  ASSERT_GT(merged.size(), 1u);
  const auto id = static_cast<int32_t>(tokenizer["model"]["vocab"].size());
  tokenizer["model"]["vocab"]["Hello"] = id;
  EXPECT_EQ(load(tokenizer)->encode("Hello", false), merged);
  tokenizer["model"]["ignore_merges"] = true;
  EXPECT_EQ(load(tokenizer)->encode("Hello", false), Ids{id});
}

TEST(HuggingFace, PropertiesMayBeRepeated) {
  const json split = {{"type", "Split"},
                      {"pattern", {{"Regex", R"(\p{L}+|\P{L}++)"}}},
                      {"behavior", "Removed"},
                      {"invert", true}};
  EXPECT_EQ(load(small({{"pre_tokenizer", split}}))->encode("ab ab"), (Ids{4, 0, 4}));
  const json counted = {{"type", "Split"}, {"pattern", {{"Regex", "a{2}+"}}}, {"behavior", "Isolated"}};
  EXPECT_THAT(error_of(small({{"pre_tokenizer", counted}})), HasSubstr("a + after a counted repetition"));
}

TEST(HuggingFace, NamesUnsupportedFeatures) {
  EXPECT_THAT(error_of(small({{"model", {{"type", "WordPiece"}}}})),
              HasSubstr("the model 'WordPiece' is not supported"));
  EXPECT_THAT(error_of(small({{"model", {{"dropout", 0.1}}}})), HasSubstr("dropout"));
  EXPECT_THAT(error_of(small({{"normalizer", {{"type", "BertNormalizer"}}}})), HasSubstr("'BertNormalizer'"));
  EXPECT_THAT(error_of(small({{"pre_tokenizer", {{"type", "UnicodeScripts"}}}})),
              HasSubstr("'UnicodeScripts'"));
  EXPECT_THAT(error_of(small({{"post_processor", {{"type", "Strange"}}}})), HasSubstr("'Strange'"));
  EXPECT_THAT(error_of(small({{"decoder", {{"type", "CTC"}}}})), HasSubstr("'CTC'"));
  const auto split = [](const char* regex) {
    return small({{"pre_tokenizer",
                   {{"type", "Split"},
                    {"pattern", {{"Regex", regex}}},
                    {"behavior", "Isolated"},
                    {"invert", false}}}});
  };
  for (const char* regex :
       {"[a&&b]", "(unclosed", "\\p{Nothing}", "\\p{Unknown}", "\\p{Alphabetic}", "\\pL", "\\h", "a{1,2}+",
        "(?m)a", "a(?i)b", "(?i:[\\p{L}])", "(?i)[\\w]", "[\\P{Han}]", "[+-\\d]", "\\u12"}) {
    EXPECT_THAT(error_of(split(regex)), HasSubstr("the regular expression")) << regex;
  }
}

TEST(HuggingFace, NotesIgnoredTruncation) {
  const auto tokenizer = load(small({{"truncation", {{"max_length", 5}}}}));
  ASSERT_EQ(tokenizer->notes().size(), 1u);
  EXPECT_THAT(tokenizer->notes()[0], HasSubstr("truncation"));
}

TEST(HuggingFace, ReportsFaults) {
  json tokenizer = small();
  tokenizer["model"]["merges"] = {"a q"};
  EXPECT_THAT(error_of(tokenizer), HasSubstr("merge 0 needs the token 'q'"));
  tokenizer["model"]["merges"] = {"a b c"};
  EXPECT_THAT(error_of(tokenizer), HasSubstr("a merge is not two tokens"));
  tokenizer = small();
  tokenizer["model"]["vocab"]["c"] = 2;
  EXPECT_THAT(error_of(tokenizer), HasSubstr("share the id 2"));
  tokenizer["model"]["vocab"]["c"] = 1'000'000'000;
  EXPECT_THAT(error_of(tokenizer), HasSubstr("has id 1000000000"));
  EXPECT_THAT(error_of(json::object()), HasSubstr("it has no \"model\""));
  HuggingFaceFiles files;
  files.tokenizer_json = "{\n \"model\": {\"type\": ?}}";
  try {
    make_huggingface_tokenizer(std::move(files), "x");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.location(), "tokenizer.json:2:20");
  }
}

TEST(HuggingFace, RolesComeFromTokenizerConfig) {
  HuggingFaceFiles files;
  files.tokenizer_json = golden("llama3").dump();
  const auto guessed = make_huggingface_tokenizer(files, "x");
  EXPECT_EQ(guessed->special_ids().bos, 0);
  EXPECT_EQ(guessed->special_ids().eod, 1);
  files.tokenizer_config_json = R"({"eos_token": {"content": "<|eot_id|>"}, "chat_template": "{{ x }}"})";
  const auto configured = make_huggingface_tokenizer(files, "x");
  EXPECT_EQ(configured->special_ids().eos, 2);
  EXPECT_EQ(configured->chat_template(), "{{ x }}");
}

TEST(HuggingFace, MistakesInTheConfigNameItsFolder) {
  HuggingFaceFiles files;
  files.tokenizer_json = golden("llama3").dump();
  files.read_from = "some/model";
  const auto error_of = [&files](const char* config) {
    files.tokenizer_config_json = config;
    try {
      make_huggingface_tokenizer(files, "x");
    } catch (const Error& error) {
      return error.render();
    }
    return std::string();
  };
  EXPECT_EQ(error_of("[]"), "some/model/tokenizer_config.json: error: it is not an object");
  EXPECT_EQ(error_of(R"({"eos_token": 5})"),
            "some/model/tokenizer_config.json: error: its eos_token is 5, which is not the text of a token\n"
            "  hint: write the token's text; its id belongs in config.json");
  EXPECT_EQ(error_of(R"({"eos_token": "<|eot_id|>", "pad_token": null})"), "");
}

class SavedTokenizer : public testing::Test {
 protected:
  const test::TemporaryFolder temporary_;
  const Path& folder_ = temporary_.path();
};

TEST_F(SavedTokenizer, LoadsAgain) {
  const std::string text = "Hello, w\xC3\xB6rld <|eot_id|> 1234";
  for (const char* name : {"gpt2", "llama3"}) {
    const auto tokenizer = load_tokenizer("HuggingFaceTokenizer", kGolden + name + ".tokenizer.json");
    tokenizer->save(folder_);
    const auto again = load_tokenizer("", folder_.string());
    EXPECT_EQ(again->encode(text), tokenizer->encode(text));
    EXPECT_EQ(again->special_ids().eod, tokenizer->special_ids().eod);
    EXPECT_EQ(again->fingerprint(), tokenizer->fingerprint());
  }
}

TEST_F(SavedTokenizer, ByteTokenizerLoadsAsByteLevelBpe) {
  const auto bytes = make_byte_tokenizer();
  bytes->save(folder_);
  const auto again = load_tokenizer("HuggingFaceTokenizer", folder_.string());
  const std::string text = "any text: \xE2\x82\xAC <|endoftext|>";
  EXPECT_EQ(again->vocab_size(), 257);
  EXPECT_EQ(again->special_ids().eod, 256);
  EXPECT_EQ(bytes->encode("any \xE2\x82\xAC"), again->encode("any \xE2\x82\xAC"));
  EXPECT_EQ(bytes->decode(bytes->encode(text)), text);
}

TEST(SimpleTokenizers, Null) {
  const auto tokenizer = load_tokenizer("NullTokenizer", "100");
  EXPECT_EQ(tokenizer->vocab_size(), 100);
  EXPECT_EQ(tokenizer->special_ids().eod, 99);
  EXPECT_EQ(tokenizer->encode("17 4\n99 "), (Ids{17, 4, 99}));
  EXPECT_EQ(tokenizer->decode(Ids{17, 4}), "17 4");
  EXPECT_THROW(tokenizer->encode("100"), Error);
  EXPECT_THROW(tokenizer->decode(Ids{100}), Error);
  EXPECT_THROW(load_tokenizer("NullTokenizer", "many"), Error);
}

TEST(LoadTokenizer, ReportsFaults) {
  const auto message = [](const char* type, const std::string& model) -> std::string {
    try {
      load_tokenizer(type, model);
    } catch (const Error& error) {
      return error.render();
    }
    return "";
  };
  EXPECT_THAT(message("WordTokenizer", "x"), HasSubstr("unknown tokenizer_type 'WordTokenizer'"));
  EXPECT_THAT(message("HuggingFaceTokenizer", ""), HasSubstr("needs a tokenizer_model"));
  EXPECT_THAT(message("HuggingFaceTokenizer", "meta-llama/Llama-3.1-8B"),
              HasSubstr("Primus downloads nothing"));
  const std::string sentencepiece = kGolden + "sp_bpe.model", llama3 = kGolden + "llama3.tokenizer.json";
  EXPECT_THAT(message("SentencePieceTokenizer", llama3),
              AllOf(HasSubstr("llama3.tokenizer.json: error: tokenizer_type SentencePieceTokenizer expects a "
                              "SentencePiece model, but this is a Hugging Face tokenizer.json"),
                    HasSubstr("hint: omit tokenizer_type")));
  EXPECT_THAT(message("TikTokenizer", sentencepiece), HasSubstr("this is a SentencePiece model"));
  EXPECT_THAT(load_tokenizer("HuggingFaceTokenizer", sentencepiece)->notes(),
              testing::ElementsAre(HasSubstr("this is a SentencePiece model; it is read as such")));
  EXPECT_THAT(load_tokenizer("Llama2Tokenizer", sentencepiece)->notes(), testing::IsEmpty());
  EXPECT_THAT(load_tokenizer("Llama2Tokenizer", llama3)->notes(),
              testing::Contains(HasSubstr("this is a Hugging Face tokenizer.json; it is read as such")));

  const test::TemporaryFolder folder;
  const auto message_for = [&](const char* name, const std::string& content) {
    write_file(folder.path() / name, content);
    return message("", folder.path() / name);
  };
  const std::string cut = "hint: the file is damaged or cut off: copy or download it again";
  for (const size_t size : {3000u, 50'000u})
    EXPECT_THAT(message_for("t.json", read_file(llama3).substr(0, size)), HasSubstr(cut));
  write_file(folder.path() / "ranks", "YQ== 0\nYg== 1\n");
  EXPECT_THAT(message("Llama2Tokenizer", folder.path() / "ranks"),
              HasSubstr("expects a SentencePiece model, but this is a tiktoken vocabulary"));
  const std::string model = read_file(sentencepiece);
  for (size_t size = 5; size < 400; ++size)
    EXPECT_THAT(message_for("t.model", model.substr(0, size)), HasSubstr(cut));
  EXPECT_THAT(message_for("t", ""), HasSubstr("the tokenizer file is empty\n  hint: use a tokenizer.json"));
  EXPECT_THAT(message_for("t", "Hello"),
              HasSubstr("this is not a tokenizer file\n  hint: use a tokenizer.json"));
  EXPECT_THAT(message_for("t", R"({"model": {"type": "WordPiece", "vocab": {}}})"),
              AllOf(HasSubstr("the model 'WordPiece' is not supported"),
                    HasSubstr("hint: docs/formats/tokenizers.md lists the supported features")));
}

}  // namespace
}  // namespace primus
