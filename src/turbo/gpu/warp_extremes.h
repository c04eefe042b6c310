// The largest and the smallest of a warp's integers, by one instruction on NVIDIA GPUs from Ampere on.
#pragma once

#include "turbo/gpu/reduce.h"

namespace primus::turbo::PRIMUS_GPU {

PRIMUS_DEVICE std::uint32_t largest_of_warp(std::uint32_t value) {
#if PRIMUS_CUDA_ARCH >= 800
  return __reduce_max_sync(0xffffffffU, value);
#else
  return warp_reduce(value, [](std::uint32_t a, std::uint32_t b) { return a > b ? a : b; });
#endif
}

PRIMUS_DEVICE std::uint32_t smallest_of_warp(std::uint32_t value) {
#if PRIMUS_CUDA_ARCH >= 800
  return __reduce_min_sync(0xffffffffU, value);
#else
  return warp_reduce(value, [](std::uint32_t a, std::uint32_t b) { return a < b ? a : b; });
#endif
}

}  // namespace primus::turbo::PRIMUS_GPU
