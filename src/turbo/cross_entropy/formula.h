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
    // If all logits of the part are -inf, the part's sum is 0, so any finite scale is right.
    const double scale = part_largest == -INFINITY ? 1.0 : ::exp(relative(part_largest));
    return static_cast<double>(part_sum) * scale;
  }
};

// Returns a logit minus the largest logit, for products with its exponential. Where the exponential is 0 in
// fp32, the result is bounded, because 0 * -infinity would be NaN.
PRIMUS_FORMULA float bounded_relative(float relative) {
  constexpr float kSmallest = -104;  // exp(-104) is below the smallest fp32 number
  return relative < kSmallest ? kSmallest : relative;
}

// Further sums over a row of logits, with e = exp(logit - largest).
struct SoftmaxMoments {
  double first = 0;    // sum of e * (logit - largest)
  double squares = 0;  // sum of e^2

  // Adds the sums of some columns, whose largest logit is part.largest. `largest` is that of the row.
  PRIMUS_FORMULA void add_part(float largest, const SoftmaxStatistics& part, double part_first,
                               double part_squares) {
    // If all logits of the part are -inf, the part's sums are 0, so any finite shift is right.
    const double shift =
        part.largest == -INFINITY ? 0.0 : static_cast<double>(part.largest) - static_cast<double>(largest);
    const double scale = ::exp(shift);
    if (scale == 0) return;  // `shift` may be -infinity
    first += scale * (part_first + shift * part.sum);
    squares += scale * scale * part_squares;
  }
  // Return the entropy, and the sum of squared probabilities.
  PRIMUS_FORMULA double entropy(const SoftmaxStatistics& row) const {
    return ::log(row.sum) - first / row.sum;
  }
  PRIMUS_FORMULA double collision(const SoftmaxStatistics& row) const {
    return squares / (row.sum * row.sum);
  }
};

// The gradient of weight * entropy with respect to a logit: -weight * p * (ln p + H). Here ln p + H equals
// (logit - largest) - mean, where `mean` is the expectation of (logit - largest) under p.
struct EntropySlope {
  float scale, mean;
  PRIMUS_FORMULA EntropySlope(float weight, const SoftmaxStatistics& row, const SoftmaxMoments& moments)
      : scale(static_cast<float>(-static_cast<double>(weight) / row.sum)),
        mean(static_cast<float>(moments.first / row.sum)) {}
  // Adds the gradient to `other`. `exponential` is exp(relative), and `relative` is the logit minus the
  // largest logit.
  PRIMUS_FORMULA float add_to(float other, float exponential, float relative) const {
    return other + scale * exponential * (bounded_relative(relative) - mean);
  }
};
// For losses without entropies.
struct NoEntropySlope {
  PRIMUS_FORMULA float add_to(float other, float, float) const { return other; }
};

// Returns the number to subtract from logits whose maximum is `largest`. If all logits are -inf, returns 0:
// exp(-inf - 0) is 0, whereas -inf - -inf would be NaN.
PRIMUS_FORMULA float exponent_base(float largest) { return largest == -INFINITY ? 0.0F : largest; }

}  // namespace primus::turbo::PRIMUS_KERNELS
