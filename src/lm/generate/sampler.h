// Choosing the next token from logits. A draw is a function of (seed, position) and the logits alone, so a
// text can be generated again, from its middle too. Thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace primus {

struct SamplingSettings {
  double temperature = 0.8;  // 0: always the likeliest token
  std::int64_t top_k = 0;    // > 0: only among the k likeliest
  double top_p = 1.0;        // < 1: only among the likeliest whose probabilities together reach p
  std::uint64_t seed = 1234;

  // Throws Error(kInvalid) naming the setting that is out of range.
  void check() const;
};

// The id of the next token. Ties go to the lower id. Throws Error(kNumerics) for NaN or +infinity among the
// logits (-infinity forbids a token).
std::int32_t sample_token(std::span<const float> logits, const SamplingSettings& settings,
                          std::int64_t position);

}  // namespace primus
