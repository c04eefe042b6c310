// Optimizer moments in 8 bits: one byte per element and one scale per block of 128 consecutive elements, as
// in "8-bit Optimizers via Block-wise Quantization" (Dettmers et al., 2021). Differences from the paper:
//
// - Codes are small floating-point numbers with 3 mantissa bits instead of a dynamic tree. The first moment
//   uses OCP's e4m3. The second moment is unsigned and uses the sign bit for a fifth exponent bit (ue5m3).
// - A scale is a power of two, stored in bf16: the unit of a block's values. The scale is the smallest power
//   of two with which the block's largest magnitude does not exceed the largest code. A finer scale would not
//   add precision to a floating-point code. Each stored value is therefore exactly a bf16 number, and a
//   second encoding does not change the value. Checkpoints hold the moments in bf16, independent of the
//   blocks.
// - Codes are rounded stochastically, which preserves the mean (turbo/stochastic_rounding.h). With rounding
//   to nearest, a second moment that changes by less than 1/32 of its value per step would not change at all.
//
// A code with exponent e and mantissa d has the value of d units if e is 0, and of (8 + d) * 2^(e-1) units
// otherwise. From 8 units on, adjacent codes differ by at most an eighth. The largest code is 14 * 2^14 units
// in e4m3 (17 binary orders of magnitude), and 15 * 2^30 units in ue5m3 (33 orders). The second moment holds
// squared gradients: 33 orders correspond to 17 orders of gradients.
//
// Quantization cannot make an update explode. A stored second moment is at least half of the moment; a stored
// first moment is at most twice the moment. Values below one unit are not rounded stochastically. A second
// moment above zero becomes one unit. The first moment is rounded to the nearest of zero and one unit.
// Therefore the quotient of the first moment and the root of the second moment grows by a factor of at most 2
// sqrt(2).
//
// Infinities and NaN become the largest code. They are not lost: the weight that is updated in the same step
// becomes infinite or NaN.
//
// All functions are pure and have the same results on every device.
#pragma once

#include <bit>
#include <cstdint>

#include "tensor/bfloat16.h"
#include "tensor/dtype.h"

namespace primus::turbo {

// Number of elements that share a scale. Scales are bf16.
inline constexpr std::int64_t kMomentBlock = 128;

// Returns whether moments of this type are block-scaled codes: e4m3, or ue5m3, which is stored as bytes.
constexpr bool has_block_scales(DType dtype) { return dtype == DType::kF8E4M3 || dtype == DType::kU8; }

// Returns 2^(field - 127), for 0 < field < 255.
constexpr float power_of_two(std::uint32_t field) { return std::bit_cast<float>(field << 23); }

// A format of 8-bit codes, with a sign bit if kSigned. The value of the largest code is (8 + kTopDigits) *
// 2^kTopExponent units.
template <bool kSigned, std::uint32_t kTopDigits, std::uint32_t kTopExponent>
struct BlockCodes {
  // Returns the exponent field of the unit of a block whose largest magnitude is `largest`. No stored value
  // is denormal, because the smallest unit is the smallest normal number.
  static constexpr std::uint32_t unit_field(float largest) {
    // Adding kRest carries into the exponent if the mantissa of `largest` exceeds that of the largest code.
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

  // `random` holds 16 random bits.
  static constexpr std::uint8_t encoded(float value, std::uint32_t unit_field, std::uint32_t random) {
    return encoded_with(value, unit_field,
                        static_cast<float>(static_cast<std::int32_t>((random & 0xFFFFU) * 2 + 1)) * 0x1p-17F);
  }
  static constexpr std::uint8_t nearest(float value, std::uint32_t unit_field) {
    return encoded_with(value, unit_field, 0.5F);
  }

 private:
  // Rounds up if the truncated fraction plus `threshold` reaches one.
  static constexpr std::uint8_t encoded_with(float value, std::uint32_t unit_field, float threshold) {
    constexpr float kTop = static_cast<float>(8 + kTopDigits) * power_of_two(127 + kTopExponent);
    const std::uint32_t sign = kSigned ? std::bit_cast<std::uint32_t>(value) >> 24 & 0x80U : 0;
    const float scaled = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFU) *
                         power_of_two(254 - unit_field);
    const float units = scaled < kTop ? scaled : kTop;
    // The exponent with which the mantissa is from 8 to 15, or 0 if the value is smaller than 8 units.
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
