// The activations of gated feed-forward layers and their gradients, shared by the kernels of all devices.
#pragma once

#include "turbo/formula.h"
#include "turbo/gate/formula.h"
#include "turbo/swiglu/swiglu.h"

namespace primus::turbo::PRIMUS_KERNELS {

struct GluGradient {
  float gate, up;
};

// Computes silu(g) * up.
struct SiluGlu {
  PRIMUS_FORMULA float forward(float g, float u) const { return silu(g) * u; }
  // Recomputing the sigmoid is cheaper than storing it.
  PRIMUS_FORMULA GluGradient backward(float g, float u, float d) const {
    const float s = sigmoid(g);
    return {d * u * silu_slope(g, s), d * (g * s)};
  }
};

// gelu(g) * up. With s = sigmoid(2 u), u = sqrt(2 / pi) * (g + c g^3), gelu is g * s, since (1 + tanh(u)) / 2
// = sigmoid(2 u); its derivative is s + g * s * (1 - s) * 2 u'.
struct GeluTanhGlu {
  static constexpr float kTwice = 1.59576912160573081F, kCubic = 0.044715F;  // 2 * sqrt(2 / pi)

  PRIMUS_FORMULA static float argument(float g) { return kTwice * g * multiply_add(kCubic * g, g, 1.0F); }
  PRIMUS_FORMULA float forward(float g, float u) const { return g * sigmoid(argument(g)) * u; }
  PRIMUS_FORMULA GluGradient backward(float g, float u, float d) const {
    const float s = sigmoid(argument(g));
    const float slope = kTwice * multiply_add(3 * kCubic * g, g, 1.0F);
    return {d * u * (s * (1.0F + g * (1.0F - s) * slope)), d * (g * s)};
  }
};

// Arguments are clamped: the gate to min(gate, limit), and up to [-limit, limit].
struct ClampedSiluGlu {
  float limit, alpha, shift;

  PRIMUS_FORMULA float clamped(float up) const { return up > limit ? limit : up < -limit ? -limit : up; }
  PRIMUS_FORMULA float forward(float gate, float up) const {
    const float g = gate > limit ? limit : gate;
    return (clamped(up) + shift) * (g * sigmoid(alpha * g));
  }
  PRIMUS_FORMULA GluGradient backward(float gate, float up, float d) const {
    const float g = gate > limit ? limit : gate;
    const float s = sigmoid(alpha * g);
    const float d_gate = d * (clamped(up) + shift) * silu_slope(alpha * g, s);
    const bool held = up > limit || up < -limit;
    return {gate > limit ? 0.0F : d_gate, held ? 0.0F : d * (g * s)};
  }
};

// SiluGlu times a weight, or, if kWeighInput, SiluGlu of arguments times the weight. The third gradient is
// that of the weight.
template <bool kWeighInput>
struct WeightedSiluGlu {
  float weight;
  struct Gradients {
    float gate, up, weight;
  };

  PRIMUS_FORMULA float forward(float g, float u) const {
    return kWeighInput ? SiluGlu{}.forward(weight * g, weight * u) : weight * SiluGlu{}.forward(g, u);
  }
  PRIMUS_FORMULA Gradients backward(float g, float u, float d) const {
    if constexpr (kWeighInput) {
      const GluGradient of = SiluGlu{}.backward(weight * g, weight * u, d);
      return {weight * of.gate, weight * of.up, of.gate * g + of.up * u};
    } else {
      const GluGradient of = SiluGlu{}.backward(g, u, d);
      return {weight * of.gate, weight * of.up, of.up * u};
    }
  }
};

// Calls body(activation) with the activation of `gate`.
template <class Body>
void with_glu_gate(GluGate gate, Body&& body) {
  if (gate == GluGate::kGeluTanh) {
    body(GeluTanhGlu{});
  } else {
    body(SiluGlu{});
  }
}

}  // namespace primus::turbo::PRIMUS_KERNELS
