// The decay of the gated delta rule and its derivatives, shared by the kernels of all devices.
#pragma once

#include "turbo/formula.h"
#include "turbo/gate/formula.h"

namespace primus::turbo::PRIMUS_KERNELS {

// log(decay) = -e^a_log * softplus(x) of one head. CPU kernels also call exp of the math library here,
// because there are few elements.
struct DeltaDecay {
  float a_log;

  PRIMUS_FORMULA static float softplus(float x) { return (x > 0 ? x : 0.0F) + ::log1pf(::expf(-::fabsf(x))); }
  PRIMUS_FORMULA float value(float x) const { return -::expf(a_log) * softplus(x); }
  // Returns the common factor of two gradients: factor * softplus(x) is the gradient of a_log, and factor *
  // sigmoid(x) is the gradient of x.
  PRIMUS_FORMULA float gradient(float d_g) const { return -d_g * ::expf(a_log); }
};

}  // namespace primus::turbo::PRIMUS_KERNELS
