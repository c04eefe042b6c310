// The number format MXFP4 (OCP Microscaling Formats v1.0): 32 numbers of 4 bits (e2m1) share a scale of 8
// bits (e8m0), a power of two. The magnitudes of e2m1 are 0, 0.5, 1, 1.5, 2, 3, 4 and 6. The arithmetic has
// the same results on every device.
//
// The specification does not define how the scale is chosen; the rule here is Primus-Turbo's. The largest
// magnitude is rounded to the precision of e2m1, ties up. The exponent of the scale is the exponent of the
// rounded magnitude minus 2, where 2 is the exponent of 6. (Largest magnitude) / scale is therefore in [3.5,
// 7), and only values above 6 saturate.
#pragma once

#include <bit>
#include <cstdint>

namespace primus::turbo {

inline constexpr std::int64_t kMxBlock = 32;
// Number of consecutive rows that a Hadamard transform mixes.
inline constexpr std::int64_t kMxHadamard = 16;

struct MxScale {
  float scale, inverse;  // powers of two; NaN: every number of the block is NaN
};

// Returns the scale of a block from the bits of its largest magnitude. If a number is infinite or NaN, the
// entire block becomes NaN, because codes cannot represent infinity or NaN. The exponent is limited to [-127,
// 125], so that the inverse and every number of the block are exact in bf16; with an exponent of 126, the
// largest code would have an infinite value.
constexpr MxScale mx_scale(std::uint32_t largest_magnitude) {
  constexpr std::uint32_t kInfinity = 0x7F800000U, kHalfDigit = 1U << 21U;
  constexpr int kBias = 127, kTopExponent = 2, kMin = -127, kMax = 125;
  if (largest_magnitude >= kInfinity) {
    const auto nan = std::bit_cast<float>(0x7FC00000U);
    return {nan, nan};
  }
  int exponent = static_cast<int>((largest_magnitude + kHalfDigit) >> 23U) - kBias - kTopExponent;
  exponent = exponent < kMin ? kMin : exponent > kMax ? kMax : exponent;
  const std::uint32_t scale =
      exponent == kMin ? 0x00400000U : static_cast<std::uint32_t>(exponent + kBias) << 23U;
  return {std::bit_cast<float>(scale),
          std::bit_cast<float>(static_cast<std::uint32_t>(kBias - exponent) << 23U)};
}

// `magnitude` is min(|x|, 6). `step` is the distance between the e2m1 numbers near `magnitude`.
struct E2m1Place {
  float magnitude, step, steps;  // steps = 1 / step

  constexpr explicit E2m1Place(float x)
      : magnitude(std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFU)), step(2), steps(0.5F) {
    if (magnitude > 6.0F) magnitude = 6.0F;
    if (magnitude < 4.0F) step = steps = 1;
    if (magnitude < 2.0F) step = 0.5F, steps = 2;
  }
};

constexpr float with_sign_of(float magnitude, float x) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) |
                              (std::bit_cast<std::uint32_t>(x) & 0x80000000U));
}

// Rounds to the nearest e2m1 number, ties to even codes. Zeros keep their sign.
constexpr float e2m1_nearest(float x) {
  constexpr float kToInteger = 12582912.0F;  // 1.5 * 2^23: adding it rounds to integers, ties to even
  const E2m1Place at(x);
  return with_sign_of(((at.magnitude * at.steps + kToInteger) - kToInteger) * at.step, x);
}

// Rounds stochastically to one of the two adjacent e2m1 numbers with 24 of the random bits, so that the mean
// is x. Magnitudes above 6 become 6, so their mean is not x.
constexpr float e2m1_at_random(float x, std::uint32_t random) {
  const E2m1Place at(x);
  const float sum = at.magnitude * at.steps + static_cast<float>(random >> 8U) * 0x1p-24F;
  return with_sign_of(static_cast<float>(sum >= 0.0F ? static_cast<int>(sum) : 0) * at.step, x);
}

}  // namespace primus::turbo
