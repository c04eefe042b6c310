// Conversion between floats and fp8 codes in kernels, by instructions where the GPU has them.
#pragma once

#include "turbo/fp8_linear/fp8_format.h"
#include "turbo/gpu/values.h"

namespace primus::turbo::PRIMUS_GPU {

// Converts two values to codes; the second code is in the upper byte.
template <class Code>
PRIMUS_DEVICE std::uint32_t two_codes(float first, float second) {
#if PRIMUS_CUDA_ARCH >= 890
  std::uint16_t pair;
  if constexpr (Code::kDType == DType::kF8E4M3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
  }
  return pair;
#else
  return Code::nearest(first).bits | static_cast<std::uint32_t>(Code::nearest(second).bits) << 8U;
#endif
}

// Converts two e4m3 codes, the second in the upper byte, to values. The conversion is exact.
PRIMUS_DEVICE void two_values(std::uint32_t codes, float& first, float& second) {
#if PRIMUS_CUDA_ARCH >= 890
  std::uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(codes)));
  first = __half2float(__ushort_as_half(static_cast<unsigned short>(halves & 0xFFFFU)));
  second = __half2float(__ushort_as_half(static_cast<unsigned short>(halves >> 16U)));
#else
  first = Fp8E4M3{static_cast<std::uint8_t>(codes & 0xFFU)}.value();
  second = Fp8E4M3{static_cast<std::uint8_t>(codes >> 8U & 0xFFU)}.value();
#endif
}

}  // namespace primus::turbo::PRIMUS_GPU
