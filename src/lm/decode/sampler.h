// Choosing the next token from logits. A draw is a function of (seed, position) and the logits alone, so a
// text can be generated again, from its middle too. Thread-safe.
#pragma once

#include <cstdint>
#include <span>

namespace primus {

struct SamplingSettings {
  double temperature = 0.8;  // 0: always the likeliest token
  std::int64_t top_k = 0;    // > 0: only among the k likeliest
  double top_p = 1.0;        // < 1: only among the likeliest whose probabilities together reach p
  std::uint64_t seed = 1234;

  // Throws Error(kInvalid) naming the setting that is out of range.
  void check() const;
};

// What follows may be chosen from: the logits of all tokens by their ids, or, with `ids`, those of the
// likeliest alone, in the order of their likelihood, of equals the lower id first.
struct NextLogits {
  std::span<const float> values;
  std::span<const std::int32_t> ids = {};
};

// How many of the likeliest tokens are as good as all of them; 0: all are needed.
std::int64_t likeliest_needed(const SamplingSettings& settings);

// The id of the next token. Ties go to the lower id. Throws Error(kNumerics) for NaN or +infinity among the
// logits (-infinity forbids a token).
std::int32_t sample_token(std::span<const float> logits, const SamplingSettings& settings,
                          std::int64_t position);
// The same, of at least likeliest_needed() tokens.
std::int32_t sample_token(const NextLogits& logits, const SamplingSettings& settings, std::int64_t position);

}  // namespace primus
