// The losses of a pair of log-probabilities, and their derivatives, in fp64. Part of formula.h, which defines
// the macros; include only formula.h.
#pragma once

#include <cstdint>

#include "turbo/preference_loss/preference_loss.h"

namespace primus::turbo::PRIMUS_KERNELS {

PRIMUS_FORMULA double logistic(double x) { return 1 / (1 + ::exp(-x)); }
PRIMUS_FORMULA double log_logistic(double x) { return ::fmin(x, 0.0) - ::log1p(::exp(-::fabs(x))); }

// A loss and its derivatives with respect to the log-probabilities of the chosen and of the rejected
// answer.
struct PairLoss {
  double loss = 0, chosen = 0, rejected = 0;

  PRIMUS_FORMULA void add(double weight, double of_loss, double by_chosen, double by_rejected) {
    loss += weight * of_loss;
    chosen += weight * by_chosen;
    rejected += weight * by_rejected;
  }
};

// A log-ratio transformed by the divergence, and the derivative of this score with respect to the log-ratio.
struct Score {
  double value, slope;
};

PRIMUS_FORMULA Score score_of(const PreferenceTerms& terms, double ratio) {
  switch (terms.divergence) {
    case PreferenceDivergence::kForwardKl:
      return {1 - ::exp(-ratio), ::exp(-ratio)};
    case PreferenceDivergence::kJensenShannon:
      return {::log(2.0) + log_logistic(ratio), logistic(-ratio)};
    case PreferenceDivergence::kAlpha: {
      const double power = terms.alpha - 1;
      if (::fabs(power) < 1e-6) return {ratio, 1};  // the limit for alpha = 1
      constexpr double kLargest = 80;               // keeps the score finite in fp32, as TRL does
      const double exponent = ::fmin(power * ratio, kLargest), grown = ::exp(exponent);
      return {(grown - 1) / power, power * ratio > kLargest ? 0.0 : grown};
    }
    default:
      return {ratio, 1};
  }
}

// -(1 - smoothing) ln sigmoid(x) - smoothing ln sigmoid(-x) with x = beta * delta, and its derivative with
// respect to delta.
struct SmoothedLoss {
  double loss, slope;
};
PRIMUS_FORMULA SmoothedLoss smoothed(const PreferenceTerms& terms, double delta) {
  const double x = terms.beta * delta, keep = 1 - terms.smoothing;
  return {-keep * log_logistic(x) - terms.smoothing * log_logistic(-x),
          terms.beta * (terms.smoothing * logistic(x) - keep * logistic(-x))};
}

// The loss of CPO. `c` and `r` are the log-probabilities of the answers, or their means.
PRIMUS_FORMULA PairLoss contrast_loss(const PreferenceTerms& terms, double c, double r) {
  PairLoss out;
  const double delta = c - r;
  const auto add = [&](PreferenceType type, double loss, double slope) {
    out.add(terms.weight_of(type), loss, slope, -slope);
  };
  if (terms.weight_of(PreferenceType::kSigmoid) != 0) {
    const SmoothedLoss s = smoothed(terms, delta);
    add(PreferenceType::kSigmoid, s.loss, s.slope);
  }
  if (terms.weight_of(PreferenceType::kSimpo) != 0) {
    const SmoothedLoss s = smoothed(terms, delta - terms.gamma / terms.beta);
    add(PreferenceType::kSimpo, s.loss, s.slope);
  }
  const double x = terms.beta * delta;
  add(PreferenceType::kHinge, ::fmax(1 - x, 0.0), x < 1 ? -terms.beta : 0.0);
  const double error = delta - 1 / (2 * terms.beta);
  add(PreferenceType::kIpo, error * error, 2 * error);
  return out;
}

// The loss of ORPO. `c` and `r` are mean log-probabilities. A probability of 1 has infinite odds, so 1 - p is
// at least 1e-12.
PRIMUS_FORMULA PairLoss odds_loss(const PreferenceTerms& terms, double c, double r, double& log_odds) {
  const double lose_c = ::fmax(-::expm1(c), 1e-12), lose_r = ::fmax(-::expm1(r), 1e-12);
  log_odds = (c - r) - (::log(lose_c) - ::log(lose_r));
  const double slope = -terms.beta * logistic(-log_odds);
  return {-terms.beta * log_logistic(log_odds), slope / lose_c, -slope / lose_r};
}

// The Bradley-Terry loss of a reward model. `gap`: score of the chosen answer minus score of the rejected
// answer minus margin. `sum`: sum of both scores, which the loss centers at 0.
PRIMUS_FORMULA PairLoss score_loss(const PreferenceTerms& terms, double gap, double sum) {
  const double centred = 2 * terms.centering * sum;
  return {-log_logistic(gap) + terms.centering * sum * sum, centred - logistic(-gap),
          centred + logistic(-gap)};
}

// Returns whether the loss sorts the pairs of a microbatch (optimal transport).
PRIMUS_FORMULA bool sorts_pairs(const PreferenceTerms& terms) {
  return terms.form == PreferenceForm::kDpo &&
         (terms.weight_of(PreferenceType::kAot) != 0 || terms.weight_of(PreferenceType::kAotUnpaired) != 0);
}

// Sums of the metrics, in the order of PreferenceMetric.
struct PreferenceMetricSums {
  double of[kPreferenceMetrics] = {};
  PRIMUS_FORMULA void add(PreferenceMetric metric, double value) { of[static_cast<int>(metric)] += value; }
};

}  // namespace primus::turbo::PRIMUS_KERNELS
