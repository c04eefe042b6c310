// Numbers of MXFP4 (OCP Microscaling Formats v1.0): 32 of 4 bits, e2m1, share a scale of 8 bits, e8m0, which
// is a power of two. The magnitudes of e2m1 are 0, 0.5, 1, 1.5, 2, 3, 4 and 6. Plain arithmetic that every
// device does alike.
//
// The scale follows Primus-Turbo, where the specification leaves it open: the largest magnitude is rounded to
// the digits that e2m1 has, half a digit upwards, and its exponent less 2, the exponent of 6, is the scale's.
// So the largest magnitude over the scale is in [3.5, 7), and only what is above 6 loses to the end of the
// range.
#pragma once

#include <bit>
#include <cstdint>

namespace primus::turbo {

inline constexpr std::int64_t kMxBlock = 32;
// Neighbours that a Hadamard transform mixes.
inline constexpr std::int64_t kMxHadamard = 16;

struct MxScale {
  float scale, inverse;  // powers of two; NaN: the block is one of NaN
};

// Of a block whose largest magnitude has these bits. An infinity or a NaN makes the whole block NaN, the only
// way that the format has to keep them visible. The exponent is within [-127, 125], for which every number of
// the block, and the inverse, is one of bf16; with 126, 6 would be infinite.
constexpr MxScale mx_scale(std::uint32_t largest_magnitude) {
  constexpr std::uint32_t kInfinity = 0x7F800000U, kHalfDigit = 1U << 21U;
  constexpr int kBias = 127, kTopExponent = 2, kLeast = -127, kMost = 125;
  if (largest_magnitude >= kInfinity) {
    const auto nan = std::bit_cast<float>(0x7FC00000U);
    return {nan, nan};
  }
  int exponent = static_cast<int>((largest_magnitude + kHalfDigit) >> 23U) - kBias - kTopExponent;
  exponent = exponent < kLeast ? kLeast : exponent > kMost ? kMost : exponent;
  const std::uint32_t scale =
      exponent == kLeast ? 0x00400000U : static_cast<std::uint32_t>(exponent + kBias) << 23U;
  return {std::bit_cast<float>(scale),
          std::bit_cast<float>(static_cast<std::uint32_t>(kBias - exponent) << 23U)};
}

// x without its sign, not above 6, and how far apart numbers of e2m1 are there.
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

// The nearest number of e2m1; of two that are equally near, the one whose code is even. Zeros keep their
// sign.
constexpr float e2m1_nearest(float x) {
  constexpr float kToInteger = 12582912.0F;  // 1.5 * 2^23: adding it rounds to integers, ties to even
  const E2m1Place at(x);
  return with_sign_of(((at.magnitude * at.steps + kToInteger) - kToInteger) * at.step, x);
}

// One of the two neighbours, the further one with the probability that keeps the mean, by 24 of the random
// bits. Magnitudes above 6 become 6, whose mean it is not.
constexpr float e2m1_at_random(float x, std::uint32_t random) {
  const E2m1Place at(x);
  const float sum = at.magnitude * at.steps + static_cast<float>(random >> 8U) * 0x1p-24F;
  return with_sign_of(static_cast<float>(sum >= 0.0F ? static_cast<int>(sum) : 0) * at.step, x);
}

}  // namespace primus::turbo
