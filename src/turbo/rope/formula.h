// Rotates a pair of numbers; shared by the kernels of all devices.
#pragma once

#include "turbo/formula.h"

namespace primus::turbo::PRIMUS_KERNELS {

struct RotatedPair {
  float first, second;

  PRIMUS_FORMULA RotatedPair(float x0, float x1, float cosine, float sine)
      : first(x0 * cosine - x1 * sine), second(x1 * cosine + x0 * sine) {}
};

}  // namespace primus::turbo::PRIMUS_KERNELS
