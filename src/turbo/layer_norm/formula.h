// Normalises an element and applies weight and bias; shared by the kernels of all devices.
#pragma once

#include "turbo/rms_norm/formula.h"

namespace primus::turbo::PRIMUS_KERNELS {

struct LayerNormRow {
  float mean, inverse;

  PRIMUS_FORMULA float operator()(float x, float weight, float bias) const {
    return multiply_add((x - mean) * inverse, weight, bias);
  }
};

}  // namespace primus::turbo::PRIMUS_KERNELS
