// Decides whether a weight oscillates; shared by the kernels of all devices.
#pragma once

#include "turbo/formula.h"

namespace primus::turbo::PRIMUS_KERNELS {

// The distances that a weight and its rounded value have moved in this window of steps.
struct Travel {
  float moved, jumped;

  PRIMUS_FORMULA void add(float before, float now, float rounded_before, float rounded) {
    moved += ::fabsf(now - before);
    jumped += ::fabsf(rounded - rounded_before);
  }
  PRIMUS_FORMULA bool oscillates(float ratio) const { return moved > 0 && jumped >= ratio * moved; }
};

}  // namespace primus::turbo::PRIMUS_KERNELS
