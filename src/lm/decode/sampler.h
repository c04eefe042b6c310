// Chooses the next token from logits. A draw depends only on (seed, position) and the logits, so a text can
// be reproduced, even from its middle. Thread-safe.
#pragma once

#include <cstdint>
#include <span>

namespace primus {

struct SamplingSettings {
  double temperature = 0.8;  // 0: always the most probable token
  std::int64_t top_k = 0;    // > 0: chooses only among the k most probable tokens
  double top_p = 1.0;        // < 1: chooses only among the most probable tokens whose probabilities sum to p
  std::uint64_t seed = 1234;

  // Throws Error(kInvalid) naming the setting that is out of range.
  void check() const;
};

// The logits to choose from: of all tokens, indexed by id; or, with `ids`, only the top-k, by descending
// logit (ties: lower id first).
struct NextLogits {
  std::span<const float> values;
  std::span<const std::int32_t> ids = {};
};

// Returns the k for which the top-k logits suffice; 0: all are needed.
std::int64_t top_k_needed(const SamplingSettings& settings);

// Returns the id of the next token. Ties go to the lower id. Throws Error(kNumerics) for NaN or +infinity
// among the logits (-infinity excludes a token).
std::int32_t sample_token(std::span<const float> logits, const SamplingSettings& settings,
                          std::int64_t position);
// Chooses from at least top_k_needed() logits.
std::int32_t sample_token(const NextLogits& logits, const SamplingSettings& settings, std::int64_t position);

}  // namespace primus
