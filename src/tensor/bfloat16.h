// bfloat16: the upper half of an IEEE binary32, rounded to nearest even on conversion. bfloat16 is only a
// storage type; arithmetic is done in float.
#pragma once

#include <bit>
#include <cstdint>

namespace primus {

struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    // NaN must stay NaN, but rounding could overflow or clear its mantissa.
    if ((u & 0x7fffffffU) > 0x7f800000U) {
      bits = static_cast<std::uint16_t>((u >> 16) | 0x0040U);
    } else {
      bits = static_cast<std::uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
    }
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};
static_assert(sizeof(BFloat16) == 2);

}  // namespace primus
