// fp32 master weights: stored next to their bf16 working values, or split into the working value and a 16-bit
// remainder.
//
// The working value is the master rounded to nearest, with ties away from zero. The remainder is master minus
// working value, in units of the last place of the master. The remainder is in [-2^15, 2^15 - 1] and fits
// into 16 bits. The sum of working value and remainder is exactly the master. The bits of the remainder are
// the lower half of the master's bits, read as a signed number. If ties were rounded to even, 65537 masters
// would share a working value whose last bit is 0, and 16 bits cannot distinguish 65537 masters.
//
// The functions use integer operations on the bits, so results are the same on every device. Infinities,
// zeros and denormals need no special case, and NaN stays NaN.
#pragma once

#include <bit>
#include <cstdint>

#include "tensor/bfloat16.h"
#include "tensor/tensor.h"

namespace primus::turbo {

// Returns the working value of a master, which operators read.
constexpr BFloat16 working_value(float master) {
  const auto bits = std::bit_cast<std::uint32_t>(master);
  const bool nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;  // rounding up could overflow the mantissa of NaN
  BFloat16 result;
  result.bits = static_cast<std::uint16_t>((nan ? bits | 0x00400000U : bits + 0x8000U) >> 16);
  return result;
}

// Returns the remainder of a split master.
constexpr std::int16_t param_remainder(float master) {
  return static_cast<std::int16_t>(std::bit_cast<std::uint32_t>(master));
}

// Returns the master with this working value and remainder.
constexpr float joined_master(BFloat16 working, std::int16_t remainder) {
  return std::bit_cast<float>((static_cast<std::uint32_t>(working.bits) << 16) +
                              static_cast<std::uint32_t>(static_cast<std::int32_t>(remainder)));
}

// Returns whether these are n master weights in a form that optimizer kernels accept: param [n] fp32, with or
// without working [n] bf16; or working [n] bf16 and remainder [n] int16, without param.
inline bool are_masters(const Tensor& param, const Tensor& working, const Tensor& remainder, std::int64_t n) {
  const auto is = [n](const Tensor& tensor, DType dtype) {
    return !tensor.absent() && tensor.dtype == dtype && tensor.elements() == n;
  };
  if (remainder.absent()) return is(param, DType::kF32) && (working.absent() || is(working, DType::kBF16));
  return param.absent() && is(working, DType::kBF16) && is(remainder, DType::kI16);
}

}  // namespace primus::turbo
