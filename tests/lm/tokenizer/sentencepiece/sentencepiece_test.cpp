// Tests SentencePiece models: rules that the reference models do not exercise, and invalid files.
#include "lm/tokenizer/sentencepiece/sentencepiece.h"

#include <gmock/gmock.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "base/error.h"
#include "base/files/file.h"
#include "base/temporary_folder.h"
#include "model_writer.h"

namespace primus {
namespace {

using testing::HasSubstr;
using Ids = std::vector<int32_t>;

const std::string kGolden = PRIMUS_SOURCE_DIR "/tests/golden/tokenizers/";
std::unique_ptr<const Tokenizer> load(const std::string& bytes) {
  return make_sentencepiece_tokenizer(bytes, "x.model", "SentencePieceTokenizer");
}
std::string error_of(const std::string& bytes) {
  try {
    load(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.render();
  }
  ADD_FAILURE() << "the file was accepted";
  return "";
}
std::string read(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}
// Decodes step by step. Every step must give whole characters, and the text must equal that of decode().
std::string streamed(const Tokenizer& tokenizer, const Ids& ids) {
  StreamDecoder stream(tokenizer);
  std::string result;
  for (const int32_t id : ids) result += stream.push(id);
  return result + stream.finish();
}

TEST(SentencePiece, TiesPreferTheLongestFirstPiece) {
  // All segmentations of "aaa" tie: aa + a, a + aa, and a + a + a.
  const auto tokenizer = load(roles() + piece("a", -1) + piece("aa", -2) + trainer(kUnigram) + kPlain);
  EXPECT_EQ(tokenizer->encode("aa"), (Ids{4}));
  EXPECT_EQ(tokenizer->encode("aaa"), (Ids{3, 4}));
}

TEST(SentencePiece, UnigramTakesTheBestSum) {
  const auto tokenizer = load(roles() + piece("a", -1) + piece("b", -1) + piece("ab", -2.5) +
                              piece("abc", -1.5) + piece("c", -3) + trainer(kUnigram) + kPlain);
  EXPECT_EQ(tokenizer->encode("ab"), (Ids{3, 4}));
  EXPECT_EQ(tokenizer->encode("abc"), (Ids{6}));
}

TEST(SentencePiece, BpeMergesTheBestScoreThenTheLeftmost) {
  const auto tokenizer = load(roles() + piece("a", -5) + piece("b", -6) + piece("ab", -1) + piece("ba", -1) +
                              piece("aba", -0.5) + trainer(kBpe) + kPlain);
  EXPECT_EQ(tokenizer->encode("ba"), (Ids{6}));
  EXPECT_EQ(tokenizer->encode("aba"), (Ids{7}));     // ab first, then aba
  EXPECT_EQ(tokenizer->encode("bab"), (Ids{6, 4}));  // the leftmost of two equal merges
}

TEST(SentencePiece, BytesReplaceCharactersWithoutAPiece) {
  const auto tokenizer =
      load(roles() + byte_pieces() + piece(kMark, -1) + piece("a", -2) + trainer(kBpe, true));
  const Ids ids = tokenizer->encode("a\xC3\xA9");
  EXPECT_EQ(ids, (Ids{259, 260, 3 + 0xC3, 3 + 0xA9}));
  EXPECT_EQ(tokenizer->decode(ids), "a\xC3\xA9");
  StreamDecoder stream(*tokenizer);
  EXPECT_EQ(stream.push(260), "a");
  EXPECT_EQ(stream.push(3 + 0xC3), "");
  EXPECT_EQ(stream.push(3 + 0xA9), "\xC3\xA9");
  // An incomplete character decodes to U+FFFD, at the end and before another piece.
  EXPECT_EQ(tokenizer->decode(Ids{3 + 0xC3}), "\xEF\xBF\xBD");
  EXPECT_EQ(tokenizer->decode(Ids{3 + 0xC3, 260}),
            "\xEF\xBF\xBD"
            "a");
  EXPECT_EQ(streamed(*tokenizer, Ids{3 + 0xC3, 260}), tokenizer->decode(Ids{3 + 0xC3, 260}));
}

TEST(SentencePiece, RunsOfUnknownCharactersAreOneToken) {
  const auto tokenizer = load(roles() + piece("a", -1) + trainer(kUnigram) + kPlain);
  EXPECT_EQ(tokenizer->encode("xya\xF0\x9F\x98\x80"), (Ids{0, 3, 0}));
  EXPECT_EQ(tokenizer->decode(Ids{0, 3}), " \xE2\x81\x87 a");
}

TEST(SentencePiece, UserDefinedPiecesAreMatchedFirst) {
  const std::string pieces =
      roles() + piece("a", -1) + piece("b", -1) + piece("bab", -0.1f) + piece("ab", -9, kUser);
  EXPECT_EQ(load(pieces + trainer(kBpe) + kPlain)->encode("bab"), (Ids{4, 6}));
  // In unigram models, a user-defined piece has the score length * highest score - 0.1.
  const auto unigram = load(pieces + trainer(kUnigram) + kPlain);
  EXPECT_EQ(unigram->encode("ab"), (Ids{6}));
  EXPECT_EQ(unigram->encode("bab"), (Ids{5}));
}

TEST(SentencePiece, ControlPiecesAreNotMatchedInText) {
  const auto tokenizer =
      load(roles() + piece("<", -1) + piece("s", -1) + piece(">", -1) + trainer(kUnigram) + kPlain);
  EXPECT_EQ(tokenizer->encode("<s>"), (Ids{3, 4, 5}));
  EXPECT_EQ(tokenizer->decode(Ids{1, 4}), "s");
  EXPECT_EQ(tokenizer->special_ids().bos, 1);
  EXPECT_EQ(tokenizer->special_ids().eod, 2);
}

TEST(SentencePiece, NamesFaultsAndUnsupportedFeatures) {
  EXPECT_THAT(error_of(""), HasSubstr("x.model: error: this is not a SentencePiece model: it has no pieces"));
  EXPECT_THAT(error_of(piece("a") + trainer(kBpe)), HasSubstr("no unknown piece"));
  EXPECT_THAT(error_of(roles() + piece("a")), HasSubstr("cut off after its pieces"));
  EXPECT_THAT(error_of(roles() + piece("", 0) + trainer(kUnigram)), HasSubstr("the piece 3 is empty"));
  EXPECT_THAT(error_of(roles() + piece("a") + piece("a") + trainer(kUnigram)),
              HasSubstr("'a' is defined twice"));
  EXPECT_THAT(error_of(roles() + piece("\xFF") + trainer(kUnigram)), HasSubstr("not UTF-8"));
  EXPECT_THAT(error_of(roles() + piece("u", 0, kUnknown) + trainer(kUnigram)),
              HasSubstr("two unknown pieces"));
  EXPECT_THAT(error_of(roles() + piece("a", std::nanf("")) + trainer(kUnigram)), HasSubstr("not a number"));
  EXPECT_THAT(error_of(roles() + piece("a") + trainer(kWord)), HasSubstr("word models are not supported"));
  EXPECT_THAT(error_of(roles() + piece("a") + trainer(kChar)),
              HasSubstr("character models are not supported"));
  EXPECT_THAT(error_of(roles() + piece("a") + trainer(kBpe, true)),
              HasSubstr("without a piece for each byte"));
  EXPECT_THAT(error_of(roles() + piece("<0xG1>", 0, kByte) + trainer(kUnigram)),
              HasSubstr("does not name a byte"));
  EXPECT_THAT(error_of(roles() + text(2, number(24, 1)) + trainer(kUnigram)),
              HasSubstr("treat_whitespace_as_suffix"));
  EXPECT_THAT(error_of(roles() + text(5, text(2, "x")) + trainer(kUnigram)), HasSubstr("denormalisation"));
  EXPECT_THAT(error_of(roles() + text(1, number(3, 9)) + trainer(kUnigram)), HasSubstr("unknown type"));
  EXPECT_THAT(error_of(varint(1 << 3 | 2) + varint(uint64_t{1} << 62)), HasSubstr("cut off"));
  EXPECT_THAT(error_of("\x0B"), HasSubstr("unknown kind"));
  EXPECT_THAT(error_of(std::string(11, '\xFF')), HasSubstr("too long"));
}

TEST(SentencePiece, DamagedModelsAreRefusedOrWork) {
  const std::string model = read(kGolden + "sp_bpe.model");
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    std::string damaged = model;
    if (i % 2 == 0) {
      damaged.resize(random() % model.size());
    } else {
      for (int k = 0; k < 3; ++k) damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    try {
      const auto tokenizer = load(damaged);
      const Ids ids = tokenizer->encode("The quick  brown f\xC3\xB6x.\n");
      EXPECT_EQ(streamed(*tokenizer, ids), tokenizer->decode(ids));
    } catch (const Error&) {
    }
  }
}

TEST(SentencePiece, LongRunsAreEncodedFast) {
  for (const char* name : {"sp_bpe.model", "sp_unigram.model"}) {
    const auto tokenizer = load(read(kGolden + name));
    for (const std::string unit : {"a", " ", "\n", "1", "\xE4\xB8\xAD", "\xF0\x9F\x98\x80", "ab", "\xFF"}) {
      std::string run;
      while (run.size() < 1 << 20) run += unit;
      const auto begin = std::chrono::steady_clock::now();
      tokenizer->encode(run);
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5)) << name << " " << unit;
    }
  }
}

// Tokens that are added in neighbouring files are found in the text before SentencePiece encodes the rest. If
// `legacy` is false, text after an added token gets no leading blank, as in transformers' LlamaTokenizer.
TEST(SentencePiece, TokensOfNeighbouringFilesAreMatchedFirst) {
  const std::string bytes = roles() + piece("a", -1) + piece("\xE2\x96\x81", -2) +
                            piece(
                                "\xE2\x96\x81"
                                "a",
                                -1) +
                            trainer(kUnigram);
  SideFiles side;
  side.added_tokens_json = R"({"<|im_end|>": 7, "<|im_start|>": 6})";
  side.special_tokens_map_json = R"({"eos_token": "<|im_end|>", "pad_token": "<pad>"})";
  side.tokenizer_config_json = R"({"legacy": false, "chat_template": "{{ x }}"})";
  const auto load_with = [&] { return make_sentencepiece_tokenizer(bytes, "x.model", "x", side); };
  const auto tokenizer = load_with();
  EXPECT_EQ(tokenizer->vocab_size(), 9);
  EXPECT_EQ(tokenizer->encode("a<|im_start|>a a<|im_end|>", false), (Ids{5, 6, 3, 5, 7}));
  EXPECT_EQ(tokenizer->encode("a", false), load(bytes)->encode("a", false));
  EXPECT_EQ(tokenizer->special_ids().eod, 7);
  EXPECT_EQ(tokenizer->special_ids().pad, 8);
  EXPECT_EQ(tokenizer->chat_template(), "{{ x }}");
  EXPECT_EQ(tokenizer->token_text(6), "<|im_start|>");
  EXPECT_EQ(tokenizer->token_id("<|im_start|>"), 6);
  EXPECT_FALSE(tokenizer->is_special(6));
  EXPECT_EQ(tokenizer->decode(Ids{5, 6, 3, 7}), "a<|im_start|>a");
  EXPECT_EQ(streamed(*tokenizer, {5, 6, 3, 7}), "a<|im_start|>a");
  EXPECT_NE(tokenizer->fingerprint(), load(bytes)->fingerprint());
  const test::TemporaryFolder folder;
  tokenizer->save(folder.path());
  const auto again = load_tokenizer("", folder.path().string());
  EXPECT_EQ(again->encode("a<|im_start|>a", false), (Ids{5, 6, 3}));
  EXPECT_EQ(again->fingerprint(), tokenizer->fingerprint());
  side.tokenizer_config_json = R"({"legacy": true})";
  EXPECT_EQ(load_with()->encode("a<|im_start|>a", false), (Ids{5, 6, 5}));
  // If the model keeps blanks, text that starts with a blank gets no second blank.
  const std::string keeps_blanks = text(3, number(3, 1) + number(4, 0) + number(5, 1));
  const auto kept = make_sentencepiece_tokenizer(bytes + keeps_blanks, "x.model", "x", side);
  EXPECT_EQ(kept->encode("a<|im_start|> a<|im_start|>a", false), (Ids{5, 6, 5, 6, 5}));
  EXPECT_EQ(kept->encode(" a", false), Ids{5});
  // Files that add no tokens keep the model's behaviour: control pieces are not recognised in text.
  side = {};
  side.tokenizer_config_json = R"({"added_tokens_decoder": {"1": {"content": "<s>", "special": true}}})";
  EXPECT_EQ(load_with()->encode("<s>", false), load(bytes)->encode("<s>", false));
}

TEST(SentencePiece, SavesFilesThatTransformersLoads) {
  const auto tokenizer = load(read(kGolden + "sp_bpe.model"));
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("primus-sp-" + std::to_string(::getpid()));
  tokenizer->save(folder);
  const auto again = load_tokenizer("Llama2Tokenizer", folder.string());
  EXPECT_EQ(again->name(), "Llama2Tokenizer");
  EXPECT_EQ(again->encode("Hello there"), tokenizer->encode("Hello there"));
  EXPECT_EQ(again->fingerprint(), tokenizer->fingerprint());
  remove_tree(folder);
}

}  // namespace
}  // namespace primus
