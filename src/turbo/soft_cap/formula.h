// Computes the soft cap and its derivative; shared by the kernels of all devices.
#pragma once

#include "turbo/formula.h"

namespace primus::turbo::PRIMUS_KERNELS {

// Return cap * tanh(x / cap), and its derivative at the point where the capped value is y.
PRIMUS_FORMULA float soft_cap(float x, float cap) { return cap * tanh(x / cap); }
PRIMUS_FORMULA float soft_cap_slope(float y, float cap) {
  const float t = y / cap;
  return (1.0F - t) * (1.0F + t);
}

// The mapping from x to its capped value, and the derivative of the mapping at the point where the value is
// y.
struct Uncapped {
  PRIMUS_FORMULA float operator()(float x) const { return x; }
  PRIMUS_FORMULA float slope(float) const { return 1.0F; }
};
struct Capped {
  float cap;
  PRIMUS_FORMULA float operator()(float x) const { return soft_cap(x, cap); }
  PRIMUS_FORMULA float slope(float y) const { return soft_cap_slope(y, cap); }
};

// Calls body(mapping): Capped if cap > 0, else Uncapped.
template <class Body>
void with_cap(float cap, Body&& body) {
  if (cap > 0) {
    body(Capped{cap});
  } else {
    body(Uncapped{});
  }
}

}  // namespace primus::turbo::PRIMUS_KERNELS
