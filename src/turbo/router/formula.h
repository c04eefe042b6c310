// Functions for the scores of experts, the order of scores, and the scalars of the losses; shared by the
// kernels of all devices.
#pragma once

#include <bit>
#include <cstdint>

#include "turbo/formula.h"
#include "turbo/gate/formula.h"
#include "turbo/router/router.h"

namespace primus::turbo::PRIMUS_KERNELS {

// Avoids a division by zero, as in the code published with DeepSeek's models.
inline constexpr float kTinySum = 1e-20F;

// Maps scores to positive integers in the same order; NaN is below every number. 0 is the key of experts that
// cannot be chosen.
PRIMUS_FORMULA std::uint32_t expert_key(float score) {
  constexpr std::uint32_t kNaNKey = 1;
  const auto bits = std::bit_cast<std::uint32_t>(score + 0.0F);  // -0 becomes 0
  const std::uint32_t ordered = (bits >> 31U) != 0 ? ~bits : bits | 0x80000000U;
  return score == score ? ordered : kNaNKey;
}

// Return a score that depends only on its own logit x, and the derivative of this score. For very negative x,
// log(1 + e^x) is nearly e^x, and log1p loses no digits. For large x, log(1 + e^x) is x.
PRIMUS_FORMULA float lone_score(RouterRule::Scoring scoring, float x) {
  if (scoring == RouterRule::Scoring::kSigmoid) return sigmoid(x);
  return x > 20.0F ? ::sqrtf(x) : ::sqrtf(::log1pf(exp(x)));
}
PRIMUS_FORMULA float lone_slope(RouterRule::Scoring scoring, float x, float score) {
  if (scoring == RouterRule::Scoring::kSigmoid) return sigmoid_slope(score);
  return score > 0 ? 0.5F * sigmoid(x) / score : 0.0F;
}

// Returns the gradient of a chosen expert's score. `inverse` is 1 / (sum of the chosen scores), or 1 without
// normalisation; `mean` is the mean of the gradients of the chosen experts' weights, weighted by the
// normalised scores.
PRIMUS_FORMULA float chosen_gradient(const RouterRule& rule, float d_weight, float inverse, float mean) {
  return rule.scale * inverse * (d_weight - (rule.normalise ? mean : 0.0F));
}

// Returns log(sum of exponentials), whose square is the z loss. `total` is the sum of exp(logit - largest).
PRIMUS_FORMULA float log_sum(float total, float largest) { return ::logf(total) + largest; }

// Returns the factor f of the balance loss f · Σ load · score of a microbatch.
inline float balance_factor(const RouterRule& rule, const Tensor& load, std::int64_t tokens) {
  const double segments = static_cast<double>(load.rows()), each = static_cast<double>(tokens) / segments;
  return static_cast<float>(static_cast<double>(load.cols()) / (rule.top_k * each * each * segments));
}

}  // namespace primus::turbo::PRIMUS_KERNELS
