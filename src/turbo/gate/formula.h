// The sigmoid and SiLU of gates with their derivatives, shared by the kernels of all devices.
#pragma once

#include "turbo/formula.h"
#include "turbo/gate/gate.h"

namespace primus::turbo::PRIMUS_KERNELS {

// Returns the derivative of sigmoid at the point where its value is s.
PRIMUS_FORMULA float sigmoid_slope(float s) { return s * (1.0F - s); }

PRIMUS_FORMULA float silu(float x) { return x * sigmoid(x); }
// Returns the derivative of silu at x, where sigmoid(x) is s.
PRIMUS_FORMULA float silu_slope(float x, float s) { return s * (1.0F + x * (1.0F - s)); }

// The activation of the gate after a norm.
template <bool kSilu>
struct NormGate {
  PRIMUS_FORMULA static float of(float g) { return kSilu ? silu(g) : sigmoid(g); }
  PRIMUS_FORMULA static float slope(float g) {
    const float s = sigmoid(g);
    return kSilu ? silu_slope(g, s) : sigmoid_slope(s);
  }
};

// Calls body(tag of the type, GateAct of the activation).
template <class Body>
void with_type_and_activation(DType dtype, GateActivation activation, Body body) {
  with_float_type(dtype, [&](auto tag) {
    if (activation == GateActivation::kSilu) return body(tag, NormGate<true>());
    body(tag, NormGate<false>());
  });
}

}  // namespace primus::turbo::PRIMUS_KERNELS
