// BPE: merges two neighbours if their concatenation is a piece; pieces with the highest score come first.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <unordered_map>

#include "base/error.h"
#include "lm/tokenizer/bpe/bpe.h"
#include "lm/tokenizer/sentencepiece/byte_trie.h"
#include "lm/tokenizer/sentencepiece/encoder.h"
#include "lm/tokenizer/sentencepiece/normalizer.h"
#include "lm/tokenizer/text/unicode.h"

namespace primus::sentencepiece {

namespace {

std::size_t character_end(std::string_view text, std::size_t begin) {
  return std::min(text.size(), begin + static_cast<std::size_t>(unicode::char_length(text[begin])));
}

class BpeEncoder final : public Encoder {
 public:
  explicit BpeEncoder(const std::vector<Piece>& pieces)
      : piece_count_(static_cast<std::int32_t>(pieces.size())) {
    collect_symbols(pieces);
    collect_merges(pieces);
  }

  void encode(std::string_view text, std::vector<Segment>& segments) const override {
    const auto scratch = scratches_.borrow();
    if (user_defined_.empty()) return encode_stretch(text, segments, *scratch);
    // Splits the text at user-defined pieces, which never merge with other text.
    std::size_t begin = 0;
    for (std::size_t at = 0; at < text.size();) {
      std::size_t length = 0;
      const std::int32_t id = user_defined_.longest(text.substr(at), length);
      if (id < 0) {
        at = character_end(text, at);
        continue;
      }
      encode_stretch(text.substr(begin, at - begin), segments, *scratch);
      segments.push_back({id, length});
      begin = at += length;
    }
    encode_stretch(text.substr(begin), segments, *scratch);
  }

 private:
  struct Scratch {
    MergeScratch merge;
    WordCache cache;
    std::vector<std::int32_t> symbols;
  };

  // Symbols are the pieces by id, followed by characters that occur in pieces but are not pieces themselves.
  void collect_symbols(const std::vector<Piece>& pieces) {
    for (std::int32_t id = 0; id < piece_count_; ++id) {
      const Piece& piece = pieces[static_cast<std::size_t>(id)];
      if (piece.type == PieceType::kUnused) {
        throw unsupported(fmt::format("the unused piece '{}' in a BPE model is not supported", piece.text));
      }
      if (piece.type == PieceType::kUserDefined) user_defined_.add(piece.text, id);
      if (piece.type == PieceType::kNormal || piece.type == PieceType::kUserDefined) {
        symbols_.emplace(piece.text, id);
        if (piece.text.rfind(kSpaceMark) > piece.text.find_first_not_of(kSpaceMark)) words_are_apart_ = false;
      }
      lengths_.push_back(piece.text.size());
    }
    for (const Piece& piece : pieces) {
      if (piece.type != PieceType::kNormal) continue;
      for (std::size_t begin = 0; begin < piece.text.size();) {
        const std::size_t end = character_end(piece.text, begin);
        const auto [it, added] = symbols_.emplace(piece.text.substr(begin, end - begin),
                                                  static_cast<std::int32_t>(lengths_.size()));
        if (added) lengths_.push_back(end - begin);
        begin = end;
      }
    }
  }

  void collect_merges(const std::vector<Piece>& pieces) {
    // Equal scores have equal ranks; among equal ranks the leftmost pair merges first.
    std::map<float, std::uint32_t, std::greater<>> ranks;
    for (const Piece& piece : pieces) {
      if (std::isnan(piece.score))
        throw invalid(fmt::format("the score of the piece '{}' is not a number", piece.text));
      ranks.emplace(piece.score, 0);
    }
    std::uint32_t next = 0;
    for (auto& [score, rank] : ranks) rank = next++;
    std::vector<MergeTable::Merge> merges;
    for (std::int32_t id = 0; id < piece_count_; ++id) {
      const Piece& piece = pieces[static_cast<std::size_t>(id)];
      if (piece.type != PieceType::kNormal && piece.type != PieceType::kUserDefined) continue;
      const std::string_view text = piece.text;
      // No symbol is longer than this limit. Without it, a piece of a megabyte would take quadratic time.
      if (text.size() > kMaxPieceBytes) throw unsupported("a piece of more than 4096 bytes is not supported");
      for (std::size_t cut = 0; (cut = text.empty() ? 0 : character_end(text, cut)) < text.size();) {
        const auto left = symbols_.find(std::string(text.substr(0, cut)));
        const auto right = symbols_.find(std::string(text.substr(cut)));
        if (left == symbols_.end() || right == symbols_.end()) continue;
        merges.push_back({left->second, right->second, id, ranks[piece.score]});
      }
    }
    merges_ = MergeTable(merges);
  }

  void encode_stretch(std::string_view text, std::vector<Segment>& segments, Scratch& scratch) const {
    while (!text.empty()) {
      const std::size_t length = words_are_apart_ ? word_end(text) : text.size();
      encode_word(text.substr(0, length), segments, scratch);
      text.remove_prefix(length);
    }
  }

  // Returns the end of the first word: leading space marks and the text up to the next space mark.
  static std::size_t word_end(std::string_view text) {
    const std::size_t first = std::min(text.find_first_not_of(kSpaceMark), text.size());
    return std::min(text.find(kSpaceMark, first), text.size());
  }

  void encode_word(std::string_view word, std::vector<Segment>& segments, Scratch& scratch) const {
    auto& symbols = scratch.symbols;
    symbols.clear();
    if (!scratch.cache.lookup(word, symbols)) {
      for (std::size_t begin = 0; begin < word.size();) {
        const std::size_t end = character_end(word, begin);
        const auto it = symbols_.find(std::string(word.substr(begin, end - begin)));
        symbols.push_back(it != symbols_.end() ? it->second : Segment::kUnknown);
        begin = end;
      }
      merge_symbols(merges_, symbols, scratch.merge);
      scratch.cache.store(symbols);
    }
    std::size_t at = 0;
    for (const std::int32_t symbol : symbols) {
      const std::size_t length =
          symbol >= 0 ? lengths_[static_cast<std::size_t>(symbol)] : character_end(word, at) - at;
      segments.push_back({symbol < piece_count_ ? symbol : Segment::kUnknown, length});
      at += length;
    }
  }

  static constexpr std::size_t kMaxPieceBytes = 4096;

  std::int32_t piece_count_;
  std::unordered_map<std::string, std::int32_t> symbols_;
  std::vector<std::size_t> lengths_;  // length of each symbol, in bytes
  // Whether space marks occur only at the start of pieces or after other space marks.
  bool words_are_apart_ = true;
  ByteTrie user_defined_;
  MergeTable merges_;
  mutable Pool<Scratch> scratches_;
};

}  // namespace

std::unique_ptr<Encoder> make_bpe_encoder(const std::vector<Piece>& pieces) {
  return std::make_unique<BpeEncoder>(pieces);
}

}  // namespace primus::sentencepiece
