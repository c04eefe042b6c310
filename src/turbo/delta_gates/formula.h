// The decay of the gated delta rule and its slopes, shared by the kernels of all devices.
#pragma once

#include "turbo/formula.h"
#include "turbo/gate/formula.h"

namespace primus::turbo::PRIMUS_KERNELS {

// log(decay) = -e^a_log * softplus(x) of one head. CPUs also use the math library's exp here, because there
// are few elements.
struct DeltaDecay {
  float a_log;

  PRIMUS_FORMULA static float softplus(float x) { return (x > 0 ? x : 0.0F) + ::log1pf(::expf(-::fabsf(x))); }
  PRIMUS_FORMULA float value(float x) const { return -::expf(a_log) * softplus(x); }
  // Returns the common factor of two gradients: softplus(x) times the factor is the gradient of a_log, and
  // sigmoid(x) times the factor is the gradient of x.
  PRIMUS_FORMULA float gradient(float d_g) const { return -d_g * ::expf(a_log); }
};

}  // namespace primus::turbo::PRIMUS_KERNELS
