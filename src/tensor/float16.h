// IEEE 754 binary16: 5 bits of exponent and 10 bits of mantissa, rounded to nearest even on conversion.
// binary16 is only a storage type; arithmetic is done in float. The conversions have no branches, so that the
// compiler vectorizes loops with conversions. The conversions are constexpr, so that device code may call
// them.
#pragma once

#include <bit>
#include <cstdint>

namespace primus {

// The conversion is exact, and a NaN keeps its payload.
[[gnu::always_inline]] constexpr float float_of_half_bits(std::uint16_t bits) {
  const auto sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t magnitude = bits & 0x7fffU;
  // A subnormal number is a multiple of 2^-24. For a normal number, the exponent bias must be changed;
  // infinity and NaN must get the maximum exponent of a float.
  const auto subnormal = std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24F);
  const std::uint32_t normal = (magnitude << 13) + (112U << 23);
  const std::uint32_t special = (magnitude << 13) | 0x7f800000U;
  const std::uint32_t finite = magnitude < 0x0400U ? subnormal : normal;
  return std::bit_cast<float>(sign | (magnitude < 0x7c00U ? finite : special));
}

// Rounds to nearest even. Values >= 65520 become infinity; NaN stays NaN.
[[gnu::always_inline]] constexpr std::uint16_t half_bits_of_float(float value) {
  const auto u = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = u >> 16 & 0x8000U, magnitude = u & 0x7fffffffU;
  // Below 2^-14, the result is in units of 2^-24: adding 1.5 * 2^23 rounds to an integer, which is then in
  // the low bits.
  constexpr float kRound = 12582912.0F;
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p24F + kRound) -
      std::bit_cast<std::uint32_t>(kRound);
  const std::uint32_t normal = ((magnitude + 0xfffU + (magnitude >> 13 & 1U)) >> 13) - (112U << 10);
  const std::uint32_t finite = magnitude < 0x38800000U ? subnormal : normal;
  const std::uint32_t special = magnitude > 0x7f800000U ? 0x7e00U | (magnitude >> 13 & 0x3ffU) : 0x7c00U;
  return static_cast<std::uint16_t>(sign | (magnitude < 0x477ff000U ? finite : special));
}

struct Float16 {
  std::uint16_t bits = 0;

  Float16() = default;
  explicit Float16(float value) : bits(half_bits_of_float(value)) {}
  explicit operator float() const { return float_of_half_bits(bits); }
};
static_assert(sizeof(Float16) == 2);

}  // namespace primus
