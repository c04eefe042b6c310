// A language model that reads tokens one after another and says what may come next, with the keys and values
// of everything read so far kept on the device. Works on weights that lie somewhere else: a Decoder's own, or
// those of a training run, which it does not change.
//
// Not thread-safe. Uses the rank's compute stream, stash and scratch; everything given must outlive it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/rank.h"
#include "lm/model/language_model.h"

namespace primus {

struct ReaderSettings {
  DType compute = DType::kF32;  // fp32 or bf16
  std::int64_t capacity = 0;  // tokens that fit; at most the model's max_positions, and what its tables reach
  std::int64_t chunk = 128;   // tokens read in one pass of a long prompt
};

class TokenReader {
 public:
  // Takes the cache from the rank's persistent arena.
  TokenReader(engine::Rank& rank, const LanguageModel& model, const ReaderSettings& settings);

  // On a measuring rank: runs a pass of every size that can occur, at the largest length it can occur at, so
  // that the arenas know what reading needs.
  void measure();

  // Reads `tokens` (at least one) behind those read before and returns the logits of what follows the last:
  // [vocab], valid until the next call. Throws Error(kInvalid) when they do not fit, or for an id outside the
  // vocabulary.
  std::span<const float> read(std::span<const std::int32_t> tokens);
  // Forgets all tokens from position `length` on.
  void truncate(std::int64_t length);

  const ModelConfig& config() const { return model_.config(); }
  std::int64_t length() const { return cache_.length(); }
  std::int64_t capacity() const { return settings_.capacity; }

 private:
  void set_length(std::int64_t length);
  void forward(std::span<const std::int32_t> tokens, bool logits);

  engine::Rank& rank_;
  const LanguageModel& model_;
  ReaderSettings settings_;
  KvCache cache_;
  std::vector<std::int32_t> positions_;
  std::vector<std::byte> downloaded_;
  std::vector<float> logits_;
};

}  // namespace primus
