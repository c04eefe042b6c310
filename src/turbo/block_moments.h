// Moments of optimizers in 8 bits: one byte for each element, and one scale for each block of 128 neighbours,
// as in "8-bit Optimizers via Block-wise Quantization" (Dettmers et al., 2021). What differs from the paper:
//
// - The codes are small floating-point numbers with 3 binary digits behind the point, and no dynamic tree.
//   The first moment is OCP's e4m3. The second one has no sign, and an exponent bit more in its place
//   (ue5m3).
// - A scale is a power of two, stored in bf16: the unit in which a block's numbers are counted. It is the
//   smallest one with which the block's largest magnitude does not exceed the largest code. A floating-point
//   code gains no digits by a finer scale. And so each stored number is a bf16 number, exactly, and encoding
//   stored numbers again changes none of them: checkpoints hold moments in bf16, whatever the blocks are.
// - Codes are rounded at random so that the mean stays (turbo/stochastic_rounding.h). To nearest, a second
//   moment that moves by less than 1/32 of itself in a step would stop.
//
// In units, code 8e + d is d where e is 0, and (8 + d) * 2^(e-1) elsewhere: neighbours differ by an eighth of
// themselves at most, from 8 on. e4m3 goes to 14 * 2^14, 17 binary orders above its unit; ue5m3 to 15 * 2^30,
// 33 orders, which are 17 of the gradients whose squares it holds.
//
// No update explodes, because a stored second moment is never zero where the moment is not, and is at least
// half of it; and a stored first moment is at most twice the moment. Only those below one unit are not
// rounded at random: the second moment becomes one unit, the first the nearer of zero and one unit. So the
// quotient of the first moment and the root of the second grows by a factor of 2 sqrt(2) at most.
//
// Infinities and NaN become the largest code; the weight, which the same step has updated, shows them.
//
// Plain functions of numbers, the same on every device.
#pragma once

#include <bit>
#include <cstdint>

#include "tensor/bfloat16.h"
#include "tensor/dtype.h"

namespace primus::turbo {

// Elements that share a scale. The type of the scales is bf16.
inline constexpr std::int64_t kMomentBlock = 128;

// Whether moments of this type are codes: e4m3, or ue5m3, which is held as bytes.
constexpr bool has_block_scales(DType dtype) { return dtype == DType::kF8E4M3 || dtype == DType::kU8; }

// 2^(field - 127), for 0 < field < 255.
constexpr float power_of_two(std::uint32_t field) { return std::bit_cast<float>(field << 23); }

// A format of codes, the largest of which is (8 + kTopDigits) * 2^kTopExponent units.
template <bool kSigned, std::uint32_t kTopDigits, std::uint32_t kTopExponent>
struct BlockCodes {
  // The exponent field of the unit of a block with this largest magnitude. The smallest unit is the smallest
  // normal number, so nothing that is stored is denormal.
  static constexpr std::uint32_t unit_field(float largest) {
    // One more where the digits of `largest` exceed the top's.
    constexpr std::uint32_t kDigits = 23,
                            kRest = (7 - kTopDigits) << (kDigits - 3) | ((1U << (kDigits - 3)) - 1);
    const std::uint32_t field = (std::bit_cast<std::uint32_t>(largest) + kRest) >> kDigits;
    return field > kTopExponent + 3 ? field - (kTopExponent + 3) : 1;
  }
  static constexpr BFloat16 scale(std::uint32_t unit_field) {
    BFloat16 result;
    result.bits = static_cast<std::uint16_t>(unit_field << 7);
    return result;
  }

  static constexpr float decoded(std::uint8_t code, float scale) {
    const std::uint32_t bits = kSigned ? code & 0x7FU : code;
    const std::uint32_t exponent = bits >> 3, digits = bits & 7U;
    const float units = static_cast<float>(static_cast<std::int32_t>(exponent == 0 ? digits : digits + 8)) *
                        power_of_two(exponent == 0 ? 127 : exponent + 126);
    const std::uint32_t sign = kSigned ? (code & 0x80U) << 24 : 0;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(units * scale) | sign);
  }

  // `random`: 16 random bits.
  static constexpr std::uint8_t encoded(float value, std::uint32_t unit_field, std::uint32_t random) {
    return encoded_with(value, unit_field,
                        static_cast<float>(static_cast<std::int32_t>((random & 0xFFFFU) * 2 + 1)) * 0x1p-17F);
  }
  static constexpr std::uint8_t nearest(float value, std::uint32_t unit_field) {
    return encoded_with(value, unit_field, 0.5F);
  }

 private:
  // What is cut off counts as one where it and `threshold` make one.
  static constexpr std::uint8_t encoded_with(float value, std::uint32_t unit_field, float threshold) {
    constexpr float kTop = static_cast<float>(8 + kTopDigits) * power_of_two(127 + kTopExponent);
    const std::uint32_t sign = kSigned ? std::bit_cast<std::uint32_t>(value) >> 24 & 0x80U : 0;
    const float scaled = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFU) *
                         power_of_two(254 - unit_field);
    const float units = scaled < kTop ? scaled : kTop;
    // The exponent with which the digits are from 8 to 15, or 0.
    const std::uint32_t field = std::bit_cast<std::uint32_t>(units) >> 23;
    const std::uint32_t exponent = field > 130 ? field - 130 : 0;
    auto digits =
        static_cast<std::int32_t>(units * power_of_two(127 - exponent) + (units < 1 ? 0.5F : threshold));
    if (!kSigned && units > 0 && digits == 0) digits = 1;
    return static_cast<std::uint8_t>(sign | (8 * exponent + static_cast<std::uint32_t>(digits)));
  }
};

using FirstMomentCodes = BlockCodes<true, 6, 14>;    // DType::kF8E4M3
using SecondMomentCodes = BlockCodes<false, 7, 30>;  // DType::kU8

}  // namespace primus::turbo
