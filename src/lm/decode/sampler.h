// Chooses the next token from logits. A draw depends only on (seed, position) and the logits, so a text can
// be reproduced, even from its middle. Thread-safe.
#pragma once

#include <cstdint>
#include <span>

namespace primus {

struct SamplingSettings {
  double temperature = 0.8;  // temperature; 0: always chooses the most probable token
  std::int64_t top_k = 0;    // if above 0: chooses only among the top_k most probable tokens
  double top_p = 1.0;        // if below 1: chooses only among the most probable tokens whose probabilities
                             // sum to top_p
  std::uint64_t seed = 1234;

  // Throws Error(kInvalid) if a setting is out of range; the message names it.
  void check() const;
};

// The logits to choose from. Without `ids`: the logits of all tokens, indexed by id. With `ids`: only the
// top-k logits, in descending order; of equal logits, the lower id comes first.
struct NextLogits {
  std::span<const float> values;
  std::span<const std::int32_t> ids = {};
  bool drawn = false;  // `ids` is the token that the device drew (draw_of)
};

// Describes how a device draws a token from the logits of a vocabulary (turbo/top_logits).
struct TokenDraw {
  double number = 0;  // the number from [0, 1) that decides
  double temperature = 0;
};

// Returns whether a device can draw a token with these settings: no limit of top_k or top_p applies.
bool is_drawn_on_device(const SamplingSettings& settings);
// Returns the draw that chooses the token at `position`.
TokenDraw draw_of(const SamplingSettings& settings, std::int64_t position);

// Returns k such that the k largest logits suffice; 0: all logits are needed.
std::int64_t top_k_needed(const SamplingSettings& settings);

// Returns the id of the next token. If tokens are equally probable, chooses the lower id. Throws
// Error(kNumerics) if a logit is NaN or +infinity; -infinity excludes a token.
std::int32_t sample_token(std::span<const float> logits, const SamplingSettings& settings,
                          std::int64_t position);
// Chooses from `logits`, which must contain at least the top_k_needed() largest logits or the drawn token.
std::int32_t sample_token(const NextLogits& logits, const SamplingSettings& settings, std::int64_t position);

}  // namespace primus
