// The gate of a channel and its derivatives, shared by the kernels of all devices.
#pragma once

#include "turbo/elementwise/formula.h"
#include "turbo/formula.h"
#include "turbo/gate/formula.h"

namespace primus::turbo::PRIMUS_KERNELS {

// Returns log(1 + e^x), without overflow for large x and without cancellation for very negative x.
PRIMUS_FORMULA float channel_softplus(float x) {
  const float maximum = x > 0 ? x : 0.0F;
  return maximum + ::log1pf(exp(x > 0 ? -x : x));
}

// The gate of a channel, with rate = exp(a_log) of its head: lower_bound * sigmoid(rate * x) if lower_bound <
// 0, else -rate * softplus(x).
struct ChannelDecay {
  float rate, lower_bound;

  PRIMUS_FORMULA float value(float x) const {
    return lower_bound < 0 ? lower_bound * sigmoid(rate * x) : -rate * channel_softplus(x);
  }
  PRIMUS_FORMULA float slope(float x) const {
    return lower_bound < 0 ? lower_bound * sigmoid_slope(sigmoid(rate * x)) * rate : -rate * sigmoid(x);
  }
  // Returns the derivative with respect to a_log.
  PRIMUS_FORMULA float slope_of_rate(float x) const {
    return lower_bound < 0 ? slope(x) * x : -rate * channel_softplus(x);
  }
};

// Turns a draw of the standard normal distribution into the inverse softplus of a rate. The logarithm of the
// rate is uniform in [low, low + range).
PRIMUS_FORMULA float rate_bias(float draw, double low, double range) {
  const double rate = ::exp(low + range * normal_cdf(static_cast<double>(draw)));
  return static_cast<float>(rate + ::log(-::expm1(-rate)));
}

}  // namespace primus::turbo::PRIMUS_KERNELS
