// The factor of a position, shared by the kernels of all devices.
#pragma once

#include <cstdint>

#include "turbo/formula.h"

namespace primus::turbo::PRIMUS_KERNELS {

// Returns 1 + attn_scale * log(1 + floor(position / floor_scale)).
PRIMUS_FORMULA float position_factor(std::int32_t position, float floor_scale, float attn_scale) {
  const float steps = ::floorf(static_cast<float>(position) / floor_scale);
  return 1.0F + attn_scale * ::log1pf(steps);
}

}  // namespace primus::turbo::PRIMUS_KERNELS
