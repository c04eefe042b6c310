// Tests of tokenizer files with which a text needs far more work or memory than its length justifies.
#include <gmock/gmock.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "lm/tokenizer/huggingface/huggingface.h"

namespace primus {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

// Returns a byte-level BPE without merges, for texts of a, b and blanks, with the given stages.
json file_with(const json& changes) {
  json tokenizer = {{"added_tokens", json::array()},
                    {"model",
                     {{"type", "BPE"},
                      {"unk_token", "b"},
                      {"vocab", {{"a", 0}, {"b", 1}, {" ", 2}, {"\xE2\x96\x81", 3}, {"aa", 4}}},
                      {"merges", json::array()}}}};
  tokenizer.merge_patch(changes);
  return tokenizer;
}

std::unique_ptr<const Tokenizer> load(const json& changes) {
  HuggingFaceFiles files;
  files.path = "t/tokenizer.json";
  files.tokenizer_json = file_with(changes).dump();
  return make_huggingface_tokenizer(std::move(files), "HuggingFaceTokenizer");
}

// Returns the CPU time of this thread, which other programs do not affect.
double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Returns the error of loading the file, or of one round trip of `text`. Fails the test if both take more
// than ten seconds.
std::string refused(const json& changes, const std::string& text = "a") {
  const double begin = processor_seconds();
  std::string message;
  try {
    const auto tokenizer = load(changes);
    tokenizer->decode(tokenizer->encode(text));
    ADD_FAILURE() << "the file was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    message = error.render();
  }
  EXPECT_LT(processor_seconds() - begin, 10) << message;
  EXPECT_THAT(message, HasSubstr("t/tokenizer.json"));
  return message;
}

json repeated(const json& step, size_t count) { return json::array_t(count, step); }
json sequence(const char* key, json steps) { return {{"type", "Sequence"}, {key, std::move(steps)}}; }
json replace(const char* from, const std::string& to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}
json split(const char* expression) {
  return {
      {"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", "Isolated"}, {"invert", false}};
}
json nested(const char* key, int depth, json inner) {
  for (int i = 0; i < depth; ++i) inner = sequence(key, json::array({std::move(inner)}));
  return inner;
}

TEST(HostileTokenizer, StepsAreCounted) {
  const json digits = {{"type", "Digits"}};
  EXPECT_THAT(refused({{"pre_tokenizer", sequence("pretokenizers", repeated(digits, 20'000))}}),
              HasSubstr("a pre-tokenizer of more than 64 steps is not supported"));
  EXPECT_THAT(refused({{"pre_tokenizer", nested("pretokenizers", 100, digits)}}),
              HasSubstr("nested too deeply"));
  EXPECT_THAT(refused({{"normalizer", sequence("normalizers", repeated({{"type", "Lowercase"}}, 64))}}),
              HasSubstr("a normalizer of more than 64 steps is not supported"));
  EXPECT_THAT(refused({{"post_processor", sequence("processors", repeated({{"type", "ByteLevel"}}, 64))}}),
              HasSubstr("a post-processor of more than 64 steps is not supported"));
  EXPECT_THAT(refused({{"decoder", sequence("decoders", repeated(replace("a", "b"), 65))}}),
              HasSubstr("a decoder of more than 64 steps is not supported"));
  // The sequence counts as one step, and can contain 63 more steps.
  const auto maximum = load({{"pre_tokenizer", sequence("pretokenizers", repeated(digits, 63))}});
  EXPECT_EQ(maximum->encode("ab"), (Ids{0, 1}));
}

TEST(HostileTokenizer, NormalizersGrowATextWithinBounds) {
  const json doubling = sequence("normalizers", repeated(replace("a", "aa"), 40));
  const json token = json::array({{{"id", 5}, {"content", "a"}, {"special", false}, {"normalized", true}}});
  EXPECT_THAT(refused({{"normalizer", doubling}, {"added_tokens", token}}),
              HasSubstr("the normalizer 'Replace' produces more than 32 times the text"));
  EXPECT_THAT(refused({{"normalizer", doubling}}, "baab"),
              HasSubstr("the tokenizer 't/tokenizer.json': the normalizer 'Replace' produces more than 32 "
                        "times the text (4 B)"));
  const std::string megabyte(1 << 20, 'b');
  EXPECT_THAT(refused({{"normalizer", replace("a", megabyte)}}, std::string(1 << 20, 'a')),
              HasSubstr("32 times"));
  EXPECT_THAT(refused({{"normalizer", {{"type", "Prepend"}, {"prepend", megabyte}}}}),
              HasSubstr("the normalizer 'Prepend' produces"));
  // The growth limit of a text applies to the sum of all parts between added tokens. A single part may reach
  // the limit.
  const json cutter = json::array({{{"id", 5}, {"content", "b"}, {"special", true}}});
  std::string parts;
  for (int i = 0; i < 100; ++i) parts += "ab";
  EXPECT_THAT(refused({{"normalizer", {{"type", "Prepend"}, {"prepend", std::string(4000, 'a')}}},
                       {"added_tokens", cutter}},
                      parts),
              HasSubstr("32 times"));
  json by_expression = replace("", "aaaaaaaa");
  by_expression["pattern"] = {{"Regex", ""}};
  EXPECT_THAT(refused({{"normalizer", sequence("normalizers", repeated(by_expression, 12))}}, "abab"),
              HasSubstr("the normalizer 'Replace' produces"));
  // The largest growth in real files: U+FDFA has 3 bytes and becomes 18 characters of 33 bytes.
  const auto nfkc = load({{"normalizer", {{"type", "NFKC"}}}});
  std::string ligatures;
  for (int i = 0; i < 10'000; ++i) ligatures += "\xEF\xB7\xBA";
  EXPECT_EQ(nfkc->encode(ligatures).size(), 180'000u);
}

TEST(HostileTokenizer, PreTokenizersGrowATextWithinBounds) {
  const json blanks = {{"type", "Metaspace"}, {"replacement", std::string(16, ' ')}, {"split", false}};
  EXPECT_THAT(refused({{"pre_tokenizer", sequence("pretokenizers", repeated(blanks, 12))}}, "a a a"),
              HasSubstr("the pre-tokenizer 'Metaspace' produces more than 32 times the text"));
}

TEST(HostileTokenizer, DecodersGrowATokenWithinBounds) {
  const json chain = sequence("decoders", repeated(replace("a", "aa"), 60));
  EXPECT_THAT(
      refused({{"decoder", chain}}),
      HasSubstr("the decoder of the tokenizer 't/tokenizer.json' produces more than 32 times the text"));
  json metaspace = {{"type", "Metaspace"}, {"replacement", "a"}};
  EXPECT_EQ(load({{"decoder", metaspace}})->decode(Ids{1, 0}), "b ");
}

TEST(HostileTokenizer, TemplatesAddFewIds) {
  json ids = json::array();
  for (int i = 0; i < 1000; ++i) ids.push_back(0);
  const json item = {{"SpecialToken", {{"id", "x"}, {"type_id", 0}}}};
  const auto with = [&](size_t count) {
    json single = repeated(item, count);
    single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    return json{
        {"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", {{"x", {{"ids", ids}}}}}};
  };
  EXPECT_THAT(refused({{"post_processor", with(20'000)}}),
              HasSubstr("a post-processor that puts more than 1024 ids around a text is not supported"));
  EXPECT_THAT(refused({{"post_processor", sequence("processors", repeated(with(1), 2))}}),
              HasSubstr("1024 ids"));
  EXPECT_EQ(load({{"post_processor", with(1)}})->frame().before.size(), 1000u);
}

TEST(HostileTokenizer, ExpressionsHaveABudgetForTheWholeText) {
  // The three expressions take exponential time at each position, quadratic time over all matches, and
  // exponential time in the search for one match.
  EXPECT_THAT(refused({{"pre_tokenizer", split("(?:a?){18}a{18}b|.")}}, std::string(60'000, 'a')),
              HasSubstr("(?:a?){18}a{18}b|. needs more than 1.1 s for a text of 60000 bytes"));
  EXPECT_THAT(refused({{"pre_tokenizer", split("a*b|.")}}, std::string(200'000, 'a')),
              HasSubstr("a*b|. needs more than 1.4 s for a text of 200000 bytes"));
  EXPECT_THAT(refused({{"pre_tokenizer", split("(?:a|aa)+[bc]")}}, std::string(5'000, 'a')),
              HasSubstr("(?:a|aa)+[bc] failed on a text of 5000 bytes"));
  EXPECT_THAT(refused({{"pre_tokenizer", split(("[ab]" + std::string(20'000, 'a')).c_str())}}),
              AllOf(HasSubstr("it has 20004 bytes"), HasSubstr("aaa...")));
}

TEST(HostileTokenizer, ALongSearchFindsTheLastMatch) {
  // The search runs in pieces. No match is lost at the end of a piece, within a character or not.
  const auto tokenizer =
      load({{"pre_tokenizer",
             {{"type", "Split"}, {"pattern", {{"Regex", "b"}}}, {"behavior", "Removed"}, {"invert", true}}}});
  for (const std::string unit : {"a", "\xE4\xB8\xAD", "\xF0\x9F\x98\x80"}) {
    for (size_t count = 16'300; count < 16'310; ++count) {
      std::string text = "b";
      for (size_t i = 0; i < 5 * count; ++i) text += unit;
      ASSERT_EQ(tokenizer->encode(text + "b"), (Ids{1, 1})) << unit << count;
    }
  }
}

TEST(HostileTokenizer, BlanksAfterTokensAreReadOnce) {
  const json blank = json::array({{{"id", 2}, {"content", " "}, {"rstrip", true}}});
  const auto tokenizer = load({{"added_tokens", blank}});
  const double begin = processor_seconds();
  EXPECT_EQ(tokenizer->encode(std::string(1 << 20, ' ')).size(), size_t{1} << 20);
  EXPECT_LT(processor_seconds() - begin, 10);  // quadratic time would be an hour
}

TEST(HostileTokenizer, TokensAndAffixesHaveAMaximumLength) {
  const json token = json::array({{{"id", 5}, {"content", std::string(5000, 'a')}}});
  EXPECT_THAT(refused({{"added_tokens", token}}), HasSubstr("the added token 5 has more than 4096 bytes"));
  EXPECT_THAT(refused({{"model", {{"continuing_subword_prefix", std::string(100, 'a')}}}}),
              HasSubstr("a prefix or suffix of tokens with more than 64 bytes"));
}

}  // namespace
}  // namespace primus
