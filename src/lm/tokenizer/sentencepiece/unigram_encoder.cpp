// Unigram: the split into pieces with the highest sum of scores, found by Viterbi's algorithm over the text's
// bytes.
#include <fmt/format.h>

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "base/error.h"
#include "lm/tokenizer/bpe/bpe.h"
#include "lm/tokenizer/sentencepiece/byte_trie.h"
#include "lm/tokenizer/sentencepiece/encoder.h"
#include "lm/tokenizer/text/unicode.h"

namespace primus::sentencepiece {

namespace {

constexpr float kUnknownPenalty = 10.0f;  // score of an unknown character, relative to the lowest score

class UnigramEncoder final : public Encoder {
 public:
  explicit UnigramEncoder(const std::vector<Piece>& pieces) : pieces_(pieces.size()) {
    float lowest = FLT_MAX, highest = FLT_MIN;
    for (std::size_t id = 0; id < pieces.size(); ++id) {
      const Piece& piece = pieces[id];
      if (std::isnan(piece.score))
        throw invalid(fmt::format("the score of the piece '{}' is not a number", piece.text));
      if (piece.type == PieceType::kNormal) {
        lowest = std::min(lowest, piece.score);
        highest = std::max(highest, piece.score);
      }
      if (piece.type != PieceType::kNormal && piece.type != PieceType::kUserDefined) continue;
      if (piece.text.size() > kMaxPieceBytes)
        throw unsupported("a piece of more than 4096 bytes is not supported");
      pieces_[id] = {piece.score, piece.type == PieceType::kUserDefined};
      trie_.add(piece.text, static_cast<std::int32_t>(id));
    }
    highest_score_ = highest;
    unknown_score_ = lowest - kUnknownPenalty;
  }

  void encode(std::string_view text, std::vector<Segment>& segments) const override {
    const auto scratch = scratches_.borrow();
    auto& best = scratch->best;  // best[i] is the best split of the first i bytes
    best.assign(text.size() + 1, {});
    // Scores are float sums over the text; each sum is rounded before the comparison, and of equal sums the
    // first is chosen. Ties are thus resolved as in the library since 0.2.3. (Up to 0.2.1 the library
    // compared unrounded sums.)
    for (std::size_t begin = 0; begin < text.size();) {
      const float score_here = best[begin].score;
      const std::size_t character_end =
          std::min(text.size(), begin + static_cast<std::size_t>(unicode::char_length(text[begin])));
      bool character_is_piece = false;
      std::int32_t node = ByteTrie::kRoot;
      for (std::size_t end = begin; end < text.size();) {
        node = trie_.step(node, text[end]);
        if (node == ByteTrie::kNone) break;
        ++end;
        const std::int32_t id = trie_.value(node);
        if (id < 0) continue;
        const PieceScore& piece = pieces_[static_cast<std::size_t>(id)];
        // A user-defined piece is preferred to every split of the text that it covers.
        const double bonus = static_cast<float>(end - begin) * highest_score_ - 0.1;
        const float score = piece.user_defined ? static_cast<float>(bonus) : piece.score;
        best[end].offer(score + score_here, begin, id);
        character_is_piece |= end == character_end;
      }
      if (!character_is_piece) {
        best[character_end].offer(unknown_score_ + score_here, begin, Segment::kUnknown);
      }
      begin = character_end;
    }
    const std::size_t first = segments.size();
    for (std::size_t end = text.size(); end > 0;) {
      const Node& node = best[end];
      segments.push_back({node.id, end - node.begin});
      end = node.begin;
    }
    std::reverse(segments.begin() + static_cast<std::ptrdiff_t>(first), segments.end());
  }

 private:
  struct PieceScore {
    float score = 0;
    bool user_defined = false;
  };
  struct Node {
    float score = 0;
    bool reached = false;
    std::int32_t id = Segment::kUnknown;
    std::size_t begin = 0;
    void offer(float candidate, std::size_t from, std::int32_t piece) {
      if (reached && !(candidate > score)) return;
      *this = {candidate, true, piece, from};
    }
  };
  struct Scratch {
    std::vector<Node> best;
  };
  static constexpr std::size_t kMaxPieceBytes = 4096;

  std::vector<PieceScore> pieces_;
  ByteTrie trie_;
  float highest_score_, unknown_score_;
  mutable Pool<Scratch> scratches_;
};

}  // namespace

std::unique_ptr<Encoder> make_unigram_encoder(const std::vector<Piece>& pieces) {
  return std::make_unique<UnigramEncoder>(pieces);
}

}  // namespace primus::sentencepiece
