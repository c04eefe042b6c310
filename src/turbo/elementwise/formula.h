// Converts normally distributed random numbers to other distributions; shared by the kernels of all devices.
#pragma once

#include "turbo/formula.h"

namespace primus::turbo::PRIMUS_KERNELS {

// Returns the probability that a standard normal number is below x.
PRIMUS_FORMULA double normal_cdf(double x) {
  constexpr double kRootHalf = 0.70710678118654752440;
  return 0.5 * ::erfc(-x * kRootHalf);
}

// Turns a draw of the standard normal distribution into a uniform number in [low, low + range], and returns
// the logarithm of the uniform number.
PRIMUS_FORMULA float log_uniform_of(float draw, double low, double range) {
  return static_cast<float>(::log(low + range * normal_cdf(static_cast<double>(draw))));
}

}  // namespace primus::turbo::PRIMUS_KERNELS
