// The SiTU activation and its gradients, shared by the kernels of all devices.
#pragma once

#include "turbo/soft_cap/formula.h"

namespace primus::turbo::PRIMUS_KERNELS {

// soft_cap(gate, beta) * sigmoid(gate) * up, where up may also be capped (turbo/soft_cap/formula.h).
template <class Cap>
struct SituGlu {
  float beta;
  Cap up_cap;
  struct Gradients {
    float gate, up;
  };

  PRIMUS_FORMULA float forward(float g, float up) const {
    return soft_cap(g, beta) * sigmoid(g) * up_cap(up);
  }
  PRIMUS_FORMULA Gradients backward(float g, float up, float d) const {
    const float s = sigmoid(g), c = soft_cap(g, beta), u = up_cap(up);
    return {d * u * s * (soft_cap_slope(c, beta) + c * (1.0F - s)), d * c * s * up_cap.slope(u)};
  }
};

// Calls body(activation), with Cap = Capped if up is capped, else Uncapped.
template <class Body>
void with_situ(float beta, float linear_beta, Body&& body) {
  with_cap(linear_beta, [&](auto cap) { body(SituGlu<decltype(cap)>{beta, cap}); });
}

}  // namespace primus::turbo::PRIMUS_KERNELS
