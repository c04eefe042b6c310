// Computes the loss of a token, and the scalars of the loss gradient, from the softmax statistics of the
// token's logits. The kernels of all devices share this code. The arithmetic and the sum of exponentials are
// in double.
#pragma once

#include "turbo/formula.h"

namespace primus::turbo::PRIMUS_KERNELS {

// The softmax statistics of a row of logits.
struct SoftmaxStatistics {
  float largest;  // ignores NaN; a NaN reaches the loss through the sum
  double sum;     // sum of exp(logit - largest)

  // Returns the label's logit minus the largest logit.
  PRIMUS_FORMULA double relative(float logit) const {
    return static_cast<double>(logit) - static_cast<double>(largest);
  }
  // Returns weight * (log(sum) - label_logit); `label_logit` is a result of relative().
  PRIMUS_FORMULA float loss(float weight, double label_logit) const {
    return static_cast<float>(static_cast<double>(weight) * (::log(sum) - label_logit));
  }
  // Returns the factor g of the gradient: the derivative of the loss with respect to a logit other than the
  // label's is g * exp(logit - largest).
  PRIMUS_FORMULA float gradient_scale(float weight) const {
    return static_cast<float>(static_cast<double>(weight) / sum);
  }
  // Returns the derivative of the loss with respect to the label's logit.
  PRIMUS_FORMULA float label_gradient(float weight, double label_logit) const {
    return static_cast<float>(static_cast<double>(weight) * (::exp(label_logit) / sum - 1));
  }
  // Returns the contribution of some columns of the row to `sum`, from the statistics of these columns.
  PRIMUS_FORMULA double of_part(float part_largest, float part_sum) const {
    // If all logits of the part are -inf, the part's sum is 0.
    const double scale = part_largest == -INFINITY ? 1.0 : ::exp(relative(part_largest));
    return static_cast<double>(part_sum) * scale;
  }
};

// Returns the number to subtract from logits whose maximum is `largest`. If all logits are -inf, returns 0:
// exp(-inf - 0) is 0, whereas -inf - -inf would be NaN.
PRIMUS_FORMULA float exponent_base(float largest) { return largest == -INFINITY ? 0.0F : largest; }

}  // namespace primus::turbo::PRIMUS_KERNELS
