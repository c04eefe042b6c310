// Tests that normalizers and pre-tokenizers equal those of the tokenizers library (write_pieces_golden.py).
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "lm/tokenizer/huggingface/parts.h"
#include "lm/tokenizer/text/regex_dialect.h"
#include "lm/tokenizer/text/unicode.h"

namespace primus {
namespace {

using nlohmann::json;

std::vector<std::string> pieces_of(const huggingface::PreTokenizerStage& stage, const std::string& text) {
  std::vector<std::string> pieces;
  TextBudget budget(text.size());
  const std::function<void(Piece, size_t)> cut = [&](Piece piece, size_t step) {
    if (step == stage.steps.size()) return pieces.emplace_back(piece.text), void();
    stage.steps[step]->split(piece, budget, [&](Piece part) { cut(part, step + 1); });
  };
  cut({text, true}, 0);
  return pieces;
}

// Each \W in a class expands to hundreds of ranges.
TEST(Pieces, ClassesOfHostileExpressionsAreBounded) {
  std::string many = "[";
  for (int i = 0; i < 4000; ++i) many += "\\W";
  EXPECT_NO_THROW(to_pcre("[\\W\\W]"));
  EXPECT_THROW(to_pcre(many + "]"), Error);
}

TEST(Pieces, EqualTheTokenizersLibrary) {
  std::ifstream file(PRIMUS_SOURCE_DIR "/tests/golden/tokenizers/pieces.jsonl");
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    const json golden = json::parse(line);
    if (golden.contains("normalizer")) {
      const auto normalizer = huggingface::parse_normalizer(golden["normalizer"]);
      for (const json& one : golden["cases"]) {
        std::string text = one[0];
        TextBudget budget(text.size());
        if (normalizer->may_change(text)) normalizer->apply(text, budget);
        EXPECT_EQ(text, one[1]) << golden["normalizer"] << " on " << one[0];
      }
      continue;
    }
    const auto stage = huggingface::parse_pre_tokenizer(golden["pre_tokenizer"]);
    for (const json& one : golden["cases"]) {
      EXPECT_EQ(pieces_of(stage, one[0]), one[1].get<std::vector<std::string>>())
          << golden["pre_tokenizer"] << " on " << one[0];
    }
  }
  EXPECT_EQ(lines, 33);
}

// Text without characters of later Unicode versions uses the short classes, which are faster.
TEST(Pieces, NewerCharactersAreListedIfTheyMatter) {
  const PcrePattern letters = to_pcre("\\p{L}+");
  EXPECT_EQ(letters.plain, "\\p{L}+");
  EXPECT_NE(letters.exact.find("\\x{1c89}"), std::string::npos);
  EXPECT_EQ(to_pcre("\\s+|a").plain, to_pcre("\\s+|a").exact);
  EXPECT_FALSE(unicode::has_newer("plain \xE6\x97\xA5 \xF0\x9F\x98\x80"));
  EXPECT_TRUE(unicode::has_newer("love \xF0\x9F\xA9\xB7"));  // U+1FA77
}

}  // namespace
}  // namespace primus
