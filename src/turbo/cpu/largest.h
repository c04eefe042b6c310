// The largest element of a row; for softmax kernels. Only for cpu*.cpp files.
#pragma once

#include <cstdint>
#include <limits>

#include "turbo/cpu/simd.h"

namespace primus::turbo::PRIMUS_CPU_ISA {

// Returns the maximum, ignoring NaN: a NaN reaches the loss through the sum of exponentials.
inline float max_of(const float* x, std::int64_t n) {
  constexpr int kLanes = 64;
  float lanes[kLanes];
  for (float& lane : lanes) lane = -std::numeric_limits<float>::infinity();
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    PRIMUS_SIMD()
    for (int lane = 0; lane < kLanes; ++lane)
      lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
  }
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] = x[i] > lanes[lane] ? x[i] : lanes[lane];
  float result = lanes[0];
  for (const float lane : lanes) result = lane > result ? lane : result;
  return result;
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
