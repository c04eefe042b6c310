// The loss of a token and its gradient's scalars, from the softmax statistics of its logits; shared by the
// kernels of all devices. Computes in double, like the sum of exponentials.
#pragma once

#include "turbo/formula.h"

namespace primus::turbo::PRIMUS_KERNELS {

// The softmax statistics of a row of logits.
struct SoftmaxStatistics {
  float largest;  // ignores NaN: a NaN reaches the loss through the sum
  double sum;     // sum of exp(logit - largest)

  // Returns the label's logit minus the largest logit.
  PRIMUS_FORMULA double relative(float logit) const {
    return static_cast<double>(logit) - static_cast<double>(largest);
  }
  // Returns weight * (log(sum) - label_logit); `label_logit`: the result of relative().
  PRIMUS_FORMULA float loss(float weight, double label_logit) const {
    return static_cast<float>(static_cast<double>(weight) * (::log(sum) - label_logit));
  }
  // Returns the factor g of the gradient: the loss's derivative by a logit other than the label's is g *
  // exp(logit - largest).
  PRIMUS_FORMULA float gradient_scale(float weight) const {
    return static_cast<float>(static_cast<double>(weight) / sum);
  }
  // Returns the loss's derivative by the label's logit.
  PRIMUS_FORMULA float label_gradient(float weight, double label_logit) const {
    return static_cast<float>(static_cast<double>(weight) * (::exp(label_logit) / sum - 1));
  }
  // Returns the term of `sum` that a part of the row contributes, from the part's own statistics.
  PRIMUS_FORMULA double of_part(float part_largest, float part_sum) const {
    // A part with only -inf has the sum 0.
    const double scale = part_largest == -INFINITY ? 1.0 : ::exp(relative(part_largest));
    return static_cast<double>(part_sum) * scale;
  }
};

// Returns the number to subtract from logits whose largest is `largest`. If all are -inf it is 0: the terms
// become exp(-inf - 0) = 0, while -inf - -inf would be NaN.
PRIMUS_FORMULA float exponent_base(float largest) { return largest == -INFINITY ? 0.0F : largest; }

}  // namespace primus::turbo::PRIMUS_KERNELS
