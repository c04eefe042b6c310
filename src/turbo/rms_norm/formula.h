// Normalisation by the root mean square and its gradient, shared by the kernels of all devices and by the
// operators that contain such a norm.
#pragma once

#include <cstdint>

#include "turbo/formula.h"

namespace primus::turbo::PRIMUS_KERNELS {

// Returns 1 / sqrt(mean square + eps), from the sum of n squares.
PRIMUS_FORMULA float inverse_rms(float squares, std::int64_t n, float eps) {
  return 1.0F / ::sqrtf(squares / static_cast<float>(n) + eps);
}

PRIMUS_FORMULA float norm_output(float x, float rstd, float weight) { return x * rstd * weight; }

// The gradient of x, from the gradient g of x * rstd: rstd * (g - x * rstd² * mean(g * x)).
struct NormGradient {
  float rstd, along;

  // `dot` is the sum of g * x over the n elements.
  PRIMUS_FORMULA NormGradient(float dot, float of_rstd, std::int64_t n)
      : rstd(of_rstd), along(dot * of_rstd * of_rstd * of_rstd / static_cast<float>(n)) {}
  PRIMUS_FORMULA float operator()(float g, float x) const { return g * rstd - x * along; }
};

// Returns the contribution of an element to the gradient of its weight.
PRIMUS_FORMULA float norm_weight_term(float d_y, float x, float rstd) { return d_y * (x * rstd); }

}  // namespace primus::turbo::PRIMUS_KERNELS
