// Decides which elements dropout keeps; shared by the kernels of all devices.
#pragma once

#include "turbo/formula.h"

namespace primus::turbo::PRIMUS_KERNELS {

// Returns x * factor, or 0 if the element's uniform number is below the rate.
PRIMUS_FORMULA float dropped_out(float x, float uniform, float rate, float factor) {
  return uniform >= rate ? x * factor : 0.0F;
}

}  // namespace primus::turbo::PRIMUS_KERNELS
