// The numbers from which formula.h computes the losses of answers and tokens, and the loss of a value. Part
// of formula.h, which defines the macros; include only formula.h.
#pragma once

#include "turbo/policy_loss/policy_loss.h"

namespace primus::turbo::PRIMUS_KERNELS {

// Sums with names. PolicyDocumentSums are in the order of PolicySum, PolicyMetricSums in that of
// PolicyMetric.
template <class Name, int kCount>
struct NamedSums {
  double of[kCount] = {};
  PRIMUS_FORMULA void add(Name which, double value) { of[static_cast<int>(which)] += value; }
};
using PolicyDocumentSums = NamedSums<PolicySum, kPolicySums>;
using PolicyMetricSums = NamedSums<PolicyMetric, kPolicyMetrics>;

// The numbers that all tokens of an answer share.
struct PolicyAnswer {
  double advantage = 0;
  double ratio = 1;       // the ratio of the answer, unless ratios are per token
  double correction = 1;  // the sequence's correction, unless corrections are per token
  double phi = 0;         // vespo
  bool kept = true;       // false: the off-policy mask drops the answer
  double share = 0;       // weight of a token's loss in the loss of the step
  // The part of the loss's derivative with respect to each token's ln p that comes from the answer's ratio.
  double by_token = 0;
};

struct PolicySlope {
  double loss = 0, slope = 0;  // a loss, and its derivative with respect to the ratio or to ln p
};

// The loss of a value, and its derivative with respect to the value.
struct ValueLoss {
  double loss = 0, slope = 0;
  bool clipped = false;
};

// `old`: the value before the steps that learn from the answer; `target`: the return.
PRIMUS_FORMULA ValueLoss value_loss(const PolicyTerms& terms, double value, double old, double target) {
  const double limited = ::fmin(::fmax(value, old - terms.low), old + terms.high);
  const double error = value - target, limited_error = limited - target;
  // The clipped value does not depend on the weights.
  if (limited_error * limited_error > error * error) return {0.5 * limited_error * limited_error, 0, true};
  return {0.5 * error * error, error, false};
}

}  // namespace primus::turbo::PRIMUS_KERNELS
