// The normalisation of queries and keys, shared by the kernels of all devices.
#pragma once

#include "turbo/formula.h"

namespace primus::turbo::PRIMUS_KERNELS {

// Returns the factor that scales a vector with sum of squares `squares` to length 1.
PRIMUS_FORMULA float unit_factor(float squares, float epsilon) { return 1.0F / ::sqrtf(squares + epsilon); }

}  // namespace primus::turbo::PRIMUS_KERNELS
