// The encoders of SentencePiece's two models (BPE and unigram), which split normalized text into pieces.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "lm/tokenizer/sentencepiece/model.h"

namespace primus::sentencepiece {

// A range of normalized text that is a piece, or consists of unknown characters.
struct Segment {
  static constexpr std::int32_t kUnknown = -1;
  std::int32_t id;
  std::size_t length;  // length in bytes
};

// Thread-safe.
class Encoder {
 public:
  virtual ~Encoder() = default;
  // Splits `text` and appends its segments, in order.
  virtual void encode(std::string_view text, std::vector<Segment>& segments) const = 0;
};

// Make the encoders. Throws Error(kInvalid) for scores that are NaN, kUnsupported for unused pieces in a BPE
// model.
std::unique_ptr<Encoder> make_bpe_encoder(const std::vector<Piece>& pieces);
std::unique_ptr<Encoder> make_unigram_encoder(const std::vector<Piece>& pieces);

}  // namespace primus::sentencepiece
