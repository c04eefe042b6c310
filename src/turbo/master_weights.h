// An fp32 master weight beside the bf16 value that operators read, or split into that value and 16 bits.
//
// The value is the nearest one, and of two that are equally near the one away from zero. Then the difference
// between the two, counted in units of the master's last place, is from -2^15 to 2^15 - 1: it fits 16 bits,
// and the sum of both is the master, bit for bit. It is what the lower half of the master's bits says as a
// signed number. Ties to even could not be split so: 65537 masters share each value whose last bit is 0.
//
// Plain bit operations, the same on every device: infinities, zeros and denormals need no case of their own,
// and a NaN stays a NaN.
#pragma once

#include <bit>
#include <cstdint>

#include "tensor/bfloat16.h"
#include "tensor/tensor.h"

namespace primus::turbo {

// What operators read of a master.
constexpr BFloat16 working_value(float master) {
  const auto bits = std::bit_cast<std::uint32_t>(master);
  const bool nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;  // rounding could carry its payload away
  BFloat16 result;
  result.bits = static_cast<std::uint16_t>((nan ? bits | 0x00400000U : bits + 0x8000U) >> 16);
  return result;
}

// The rest of it.
constexpr std::int16_t param_remainder(float master) {
  return static_cast<std::int16_t>(std::bit_cast<std::uint32_t>(master));
}

// The master of which these are the value and the rest.
constexpr float joined_master(BFloat16 working, std::int16_t remainder) {
  return std::bit_cast<float>((static_cast<std::uint32_t>(working.bits) << 16) +
                              static_cast<std::uint32_t>(static_cast<std::int32_t>(remainder)));
}

// Whether these are n master weights as an optimizer's kernel takes them:
//   param [n] fp32, with working [n] bf16 or without; or working [n] bf16 and remainder [n] int16, no param.
inline bool are_masters(const Tensor& param, const Tensor& working, const Tensor& remainder, std::int64_t n) {
  const auto is = [n](const Tensor& tensor, DType dtype) {
    return !tensor.absent() && tensor.dtype == dtype && tensor.elements() == n;
  };
  if (remainder.absent()) return is(param, DType::kF32) && (working.absent() || is(working, DType::kBF16));
  return param.absent() && is(working, DType::kBF16) && is(remainder, DType::kI16);
}

}  // namespace primus::turbo
