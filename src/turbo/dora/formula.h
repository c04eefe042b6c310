// An element of a product that is scaled to the magnitude of its row; shared by the kernels of all devices.
#pragma once

#include "turbo/formula.h"

namespace primus::turbo::PRIMUS_KERNELS {

// `square`: the square of the row's norm.
PRIMUS_FORMULA float to_magnitude(float x, float magnitude, float square) {
  return x * (magnitude / ::sqrtf(square));
}

// Returns the element's term of the magnitude's gradient.
PRIMUS_FORMULA float magnitude_term(float x, float d_y, float square) { return x * d_y / ::sqrtf(square); }

}  // namespace primus::turbo::PRIMUS_KERNELS
