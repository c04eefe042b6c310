// Arithmetic of attention scores on GPUs: their scale and soft cap, and the exponential of the softmax.
#pragma once

#include "turbo/gpu/mma.h"

namespace primus::turbo::PRIMUS_GPU {

// Returns 2^x with an error of at most 2 units in the last place, or 0 if the result would be denormal. A GPU
// needs one instruction. Intended for softmax, whose arguments are at most 0.
PRIMUS_DEVICE float exp2_flushed(float x) {
#if PRIMUS_CUDA_ARCH >= 800
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return ::exp2f(x);
#endif
}

constexpr float kLog2E = 1.44269504088896341F, kLn2 = 0.693147180559945309F;

// The factor of scores, and their soft cap (AttentionShape::score_cap).
struct ScoreScale {
  float scale, cap;  // cap = 0: no cap

  // With a cap, replaces each product by the tanh of the soft cap; factor() later multiplies by the cap. Call
  // this function before masking.
  template <int kN>
  PRIMUS_DEVICE void apply_cap(Accumulator (&scores)[kN]) const {
    if (cap == 0) return;
    const float factor = scale / cap;
    PRIMUS_UNROLL
    for (int j = 0; j < kN; ++j) {
      PRIMUS_UNROLL
      for (int i = 0; i < kPerLane; ++i) scores[j].at[i] = ::tanhf(scores[j].at[i] * factor);
    }
  }
  // Returns the factor of scores after apply_cap().
  PRIMUS_DEVICE float factor() const { return cap > 0 ? cap : scale; }
  // Returns the derivative of a score with respect to its product, where apply_cap() returned `score`.
  PRIMUS_DEVICE float slope(float score) const {
    return cap > 0 ? scale * ((1.0F - score) * (1.0F + score)) : scale;
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
