// A language model that reads the tokens of one sequence one after another and says what may come next, with
// the keys and values of everything read so far kept on the device. Works on weights that lie somewhere else:
// a Decoder's own, or those of a training run, which it does not change.
//
// Not thread-safe. Uses the rank's compute stream, stash and scratch; everything given must outlive it.
#pragma once

#include <cstdint>
#include <span>

#include "lm/generate/batch_reader.h"

namespace primus {

class TokenReader {
 public:
  // Takes the cache, of one sequence, from the rank's persistent arena.
  TokenReader(engine::Rank& rank, const LanguageModel& model, const ReaderSettings& settings);

  // As BatchReader::measure.
  void measure() { reader_.measure(); }

  // Reads `tokens` (at least one) behind those read before and returns the logits of what follows the last:
  // [vocab], valid until the next call. Throws Error(kInvalid) when they do not fit, or for an id outside the
  // vocabulary.
  std::span<const float> read(std::span<const std::int32_t> tokens) { return read(tokens, {}).values; }
  // The same, of as many tokens as are wanted (BatchReader::read_next).
  NextLogits read(std::span<const std::int32_t> tokens, const WantedLogits& wanted);
  // As BatchReader's.
  bool reads_together() const { return reader_.reads_together(); }
  bool gathers_weights() const { return reader_.gathers_weights(); }
  // As BatchReader's: forgets tokens from position `length` on, or all.
  void truncate(std::int64_t length) { reader_.truncate(0, length); }

  const ModelConfig& config() const { return reader_.config(); }
  std::int64_t length() const { return reader_.length(0); }
  std::int64_t capacity() const { return reader_.settings().capacity; }

 private:
  BatchReader reader_;
};

}  // namespace primus
