// Reads one text, token by token or in pieces, and returns the logits of the next token. For tests of
// readers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "lm/decode/batch_reader.h"

namespace primus::test {

class TokenReader {
 public:
  explicit TokenReader(BatchReader& reader) : reader_(reader) {}

  // Reads `tokens`, which continue the tokens read before. Returns the logits of the next token, valid until
  // the next call.
  std::span<const float> read(std::span<const std::int32_t> tokens) { return read(tokens, {}).values; }
  NextLogits read(std::span<const std::int32_t> tokens, const WantedLogits& wanted) {
    if (reader_.length(sequence_) == 0) reader_.reserve(sequence_, reader_.settings().capacity);
    const BatchReader::Input all{sequence_, tokens};
    reader_.check({&all, 1});
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    const auto pass_tokens = static_cast<std::size_t>(reader_.settings().pass_tokens);
    while (tokens.size() > 1) {
      const BatchReader::Input part{sequence_, tokens.first(std::min(tokens.size() - 1, pass_tokens))};
      reader_.read({&part, 1});
      tokens = tokens.subspan(part.tokens.size());
    }
    const BatchReader::Input last{sequence_, tokens, true};
    reader_.read({&last, 1}, wanted);
    return reader_.next(0);
  }
  // Keeps only the first `length` tokens. Keeps no token if the cache cannot reuse exactly `length` tokens.
  void truncate(std::int64_t length) {
    if (length >= this->length()) return;
    // the last of the kept tokens must be read again to give logits
    tokens_.resize(static_cast<std::size_t>(length) + 1);
    reader_.release(sequence_);
    sequence_ = *reader_.begin(tokens_);
    tokens_.resize(static_cast<std::size_t>(reader_.length(sequence_)));
    reader_.reserve(sequence_, reader_.settings().capacity);
  }
  std::int64_t length() const { return reader_.length(sequence_); }

 private:
  BatchReader& reader_;
  std::int64_t sequence_ = 0;
  std::vector<std::int32_t> tokens_;
};

}  // namespace primus::test
