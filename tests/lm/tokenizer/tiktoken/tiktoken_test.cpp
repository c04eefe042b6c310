// Tests tiktoken's rank files and Megatron's JSON form of such files.
#include "lm/tokenizer/tiktoken/tiktoken.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/file.h"
#include "lm/tokenizer/bpe/byte_level.h"

namespace primus {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

const std::string kGolden = PRIMUS_SOURCE_DIR "/tests/golden/tokenizers/";

std::string base64(const std::string& bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k)
      bits = bits << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) text += i + k > bytes.size() ? '=' : kDigits[bits >> (18 - 6 * k) & 63];
  }
  return text;
}

std::vector<std::string> small_vocabulary() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* token : {"ab", "abc", " ab", "bc", "\xC3\xA9"}) tokens.emplace_back(token);
  return tokens;
}
std::string rank_file(const std::vector<std::string>& tokens) {
  std::string file;
  for (size_t i = 0; i < tokens.size(); ++i) file += base64(tokens[i]) + " " + std::to_string(i) + "\n";
  return file;
}
std::unique_ptr<const Tokenizer> load(const std::string& bytes) {
  EXPECT_TRUE(looks_like_tiktoken(bytes));
  return make_tiktoken_tokenizer(bytes, "x.tiktoken", "TikTokenizer");
}
std::string error_of(const std::string& bytes) {
  try {
    make_tiktoken_tokenizer(bytes, "x.tiktoken", "TikTokenizer");
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.render();
  }
  ADD_FAILURE() << "the file was accepted";
  return "";
}

TEST(Tiktoken, MergesByTheRankOfTheResult) {
  const auto tokenizer = load(rank_file(small_vocabulary()));
  EXPECT_EQ(tokenizer->encode("abc"), (Ids{257}));  // abc is a token
  EXPECT_EQ(tokenizer->encode("xabcx"), (Ids{'x', 257, 'x'}));
  EXPECT_EQ(tokenizer->encode("x ab"), (Ids{'x', 258}));
  EXPECT_EQ(tokenizer->encode("\xC3\xA9"), (Ids{260}));
  EXPECT_EQ(tokenizer->decode(Ids{257, 258, 0xC3, 0xA9}), "abc ab\xC3\xA9");
  StreamDecoder stream(*tokenizer);
  EXPECT_EQ(stream.push(0xC3), "");
  EXPECT_EQ(stream.push(0xA9), "\xC3\xA9");
  EXPECT_THAT(tokenizer->notes(), testing::ElementsAre(HasSubstr("a rank file of 261 tokens is unknown")));
}

TEST(Tiktoken, TheEndOfTextIsSpecial) {
  const auto tokenizer = load(rank_file(small_vocabulary()));
  EXPECT_EQ(tokenizer->vocab_size(), 262);
  EXPECT_EQ(tokenizer->special_ids().eod, 261);
  EXPECT_EQ(tokenizer->encode("ab<|endoftext|>"), (Ids{256, 261}));
  EXPECT_EQ(tokenizer->decode(Ids{256, 261}), "ab");
  EXPECT_EQ(tokenizer->decode(Ids{256, 261}, false), "ab<|endoftext|>");
}

// A rank file made from a tokenizer.json with Llama 3's expression gives equal ids.
TEST(Tiktoken, EqualsTheHuggingFaceFormOfTheSameVocabulary) {
  const json golden = json::parse(std::ifstream(kGolden + "llama3.tokenizer.json"));
  std::vector<std::string> tokens;
  for (const auto& [token, id] : golden["model"]["vocab"].items()) {
    const auto index = id.get<size_t>();
    if (tokens.size() <= index) tokens.resize(index + 1);
    tokens[index] = *byte_level::to_bytes(token);
  }
  std::string file;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!tokens[i].empty()) file += base64(tokens[i]) + " " + std::to_string(i) + "\n";
  }
  const auto tokenizer = load(file);
  const json reference = json::parse(std::ifstream(kGolden + "reference.json"));
  int compared = 0;
  for (const json& item : reference["llama3"]) {
    const auto text = item["text"].get<std::string>();
    if (text.find("<|") != std::string::npos) continue;
    EXPECT_EQ(tokenizer->encode(text, false), item["ids_no_special"].get<Ids>()) << text;
    ++compared;
  }
  EXPECT_GT(compared, 250);
}

// Rank files with as many ranks as the published files, because the number of ranks identifies a tokenizer.
// write_tiktoken_golden.py explains the contents of these files. The expected ids come from the tiktoken
// package.
class PublishedRanks : public testing::TestWithParam<const char*> {
 protected:
  // Returns all regular tokens of llama3.tokenizer.json, then tokens that no text contains.
  static std::vector<std::string> tokens(size_t count) {
    const json source = json::parse(std::ifstream(kGolden + "llama3.tokenizer.json"));
    std::map<size_t, std::string> by_id;
    for (const auto& [token, id] : source["model"]["vocab"].items()) by_id[id.get<size_t>()] = token;
    for (const json& special : source["added_tokens"]) by_id.erase(special["id"].get<size_t>());
    std::vector<std::string> tokens;
    for (const auto& [id, token] : by_id) tokens.push_back(*byte_level::to_bytes(token));
    for (size_t rank = tokens.size(); rank < count; ++rank) {
      tokens.push_back(
          {'\xF5', static_cast<char>(rank >> 16), static_cast<char>(rank >> 8), static_cast<char>(rank)});
    }
    return tokens;
  }
  static std::string file_of(const std::string& name, size_t count) {
    const std::vector<std::string> all = tokens(count);
    if (name == "megatron") {
      json list = json::array();
      for (size_t i = 0; i < all.size(); ++i)
        list.push_back({{"rank", i}, {"token_bytes", base64(all[i])}, {"token_str", "?"}});
      return list.dump();
    }
    std::string file;
    const size_t skipped = name == "p50k_base" ? 50256 : count;
    for (size_t i = 0; i < all.size(); ++i)
      file += base64(all[i]) + " " + std::to_string(i < skipped ? i : i + 1) + "\n";
    return file;
  }
  static std::uint32_t fnv1a(const Ids& ids) {
    std::uint32_t value = 2166136261;
    for (const std::int32_t id : ids) {
      for (int shift = 0; shift < 32; shift += 8)
        value = (value ^ (static_cast<std::uint32_t>(id) >> shift & 255)) * 16777619;
    }
    return value;
  }
};

TEST_P(PublishedRanks, GiveTheIdsOfTheTiktokenPackage) {
  const json golden = json::parse(std::ifstream(kGolden + "tiktoken.json"));
  const json& expected = golden["encodings"][GetParam()];
  const auto tokenizer = load(file_of(GetParam(), expected["ranks"]));
  const bool megatron = GetParam() == std::string("megatron");
  EXPECT_EQ(tokenizer->vocab_size(), expected["vocab_size"].get<int>() + (megatron ? 1000 : 0));
  EXPECT_TRUE(tokenizer->notes().empty());
  const json reference = json::parse(std::ifstream(kGolden + "reference.json"));
  std::vector<std::string> texts;
  for (const json& item : reference["llama3"]) texts.push_back(item["text"]);
  for (const json& text : golden["more_texts"]) texts.push_back(text);
  ASSERT_EQ(texts.size(), expected["hashes"].size());
  for (size_t i = 0; i < texts.size(); ++i) {
    // In Megatron's tokenizer, special tokens have no text.
    if (megatron && texts[i].find("<s>") != std::string::npos) continue;
    Ids ids = tokenizer->encode(texts[i], false);
    EXPECT_EQ(tokenizer->decode(ids, /*skip_special=*/false), texts[i]);
    for (std::int32_t& id : ids) id -= megatron ? 1000 : 0;
    EXPECT_EQ(ids.size(), expected["hashes"][i][0]) << texts[i];
    EXPECT_EQ(fnv1a(ids), expected["hashes"][i][1]) << texts[i] << "\n" << json(ids);
  }
}

INSTANTIATE_TEST_SUITE_P(Files, PublishedRanks,
                         testing::Values("r50k_base", "p50k_base", "cl100k_base", "o200k_base", "llama3",
                                         "megatron"),
                         [](const auto& test) { return std::string(test.param); });

TEST(Tiktoken, MegatronsJsonHasAThousandSpecialTokensFirst) {
  json list = json::array();
  const auto tokens = small_vocabulary();
  for (size_t i = 0; i < tokens.size(); ++i)
    list.push_back({{"rank", i}, {"token_bytes", base64(tokens[i])}, {"token_str", "?"}});
  const auto tokenizer = load(list.dump());
  EXPECT_EQ(tokenizer->encode("abc"), (Ids{1257}));
  EXPECT_EQ(tokenizer->special_ids().bos, 1);
  EXPECT_EQ(tokenizer->special_ids().eod, 2);
  EXPECT_EQ(tokenizer->token_text(7), "<SPECIAL_7>");
  list[3]["rank"] = 4;
  EXPECT_THAT(error_of(list.dump()), HasSubstr("or its rank differs from its place"));
  EXPECT_THAT(error_of("[{\"rank\": 0, \"token_bytes\": \"!\"}]"), HasSubstr("is not base64"));
}

TEST(Tiktoken, ReportsFaults) {
  const std::string good = rank_file(small_vocabulary());
  EXPECT_THAT(error_of(good + "YWJ 7\n"), HasSubstr("x.tiktoken:262: error"));
  EXPECT_THAT(error_of(good + "YWJj\n"), HasSubstr("x.tiktoken:262: error"));
  EXPECT_THAT(error_of(good + "YWJj -1\n"), HasSubstr("x.tiktoken:262: error"));
  EXPECT_THAT(error_of(good + "YWJjZA== 5\n"), HasSubstr("x.tiktoken: error"));
  EXPECT_THAT(error_of(good + "YWJjZA== 99999999999\n"), HasSubstr("x.tiktoken: error"));
  EXPECT_THAT(error_of(good.substr(good.find('\n') + 1)), HasSubstr("the byte 0 has no rank"));
  EXPECT_FALSE(looks_like_tiktoken("{\"model\": {}}"));
  EXPECT_FALSE(looks_like_tiktoken(""));
}

TEST(Tiktoken, SavesATokenizerJsonWithTheSameIds) {
  const auto tokenizer = load(rank_file(small_vocabulary()));
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("primus-tiktoken-" + std::to_string(::getpid()));
  tokenizer->save(folder);
  const auto again = load_tokenizer("", folder.string());
  for (const std::string text : {"abc ab xbc", "\xC3\xA9t\xC3\xA9<|endoftext|>  \n"})
    EXPECT_EQ(again->encode(text), tokenizer->encode(text));
  remove_tree(folder);
}

}  // namespace
}  // namespace primus
