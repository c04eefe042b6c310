// FP8 values: e4m3 and e5m2 of OCP's "8-bit Floating Point Specification" (1.0, 2023). NVIDIA GPUs since Ada
// and Hopper can multiply these values. A code is a sign, an exponent field and a mantissa, with subnormal
// values below the smallest exponent.
//
//            exponent bits, bias   mantissa bits   largest   smallest normal   smallest   infinity
//     e4m3     4, 7                  3             448       2^-6              2^-9       none
//     e5m2     5, 15                 2             57344     2^-14             2^-16      0x7C
//
// Conversion rounds to nearest even and saturates: values beyond the range, including infinity, become the
// largest number of their sign. NaN becomes 0x7F. The codes equal those of NVIDIA's cvt.rn.satfinite.
//
// All functions are pure and have the same results on every device.
#pragma once

#include <bit>
#include <cstdint>

#include "tensor/dtype.h"

namespace primus::turbo {

// `kTop` is the code of the largest number.
template <DType kType, int kDigits, int kBias, std::uint32_t kTop>
struct Fp8 {
  static constexpr DType kDType = kType;
  std::uint8_t bits;

  static constexpr float largest() { return of_magnitude(kTop); }

  static constexpr Fp8 nearest(float x) {
    const auto all = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t magnitude = all & 0x7FFFFFFFU, sign = all >> 24 & 0x80U;
    // Rounds to nearest even: adds half a unit of the last kept digit, or slightly less than half if this
    // digit is even.
    const std::uint32_t rounded = magnitude + ((1U << (kCut - 1)) - 1) + (magnitude >> kCut & 1U);
    const std::uint32_t normal = (rounded >> kCut) - ((127U - kBias) << kDigits);
    // Subnormal numbers are multiples of the smallest subnormal number. The code adds a float whose last bit
    // has the value of this number, so the sum is rounded to a multiple of it.
    constexpr std::uint32_t kField = 127 + 24 - kBias - kDigits;
    const float sum = std::bit_cast<float>(magnitude) + std::bit_cast<float>(kField << 23);
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(sum) - (kField << 23);
    std::uint32_t code = magnitude < ((128U - kBias) << 23) ? subnormal : normal < kTop ? normal : kTop;
    code |= sign;
    return {static_cast<std::uint8_t>(magnitude > 0x7F800000U ? 0x7FU : code)};
  }

  constexpr float value() const {
    const float magnitude = of_magnitude(bits & 0x7FU);
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) |
                                (static_cast<std::uint32_t>(bits) & 0x80U) << 24);
  }

 private:
  // Number of mantissa bits of a float that a code does not have.
  static constexpr std::uint32_t kCut = 23 - kDigits;

  static constexpr float of_magnitude(std::uint32_t code) {
    constexpr std::uint32_t kInfinity = 0x7F800000U, kNan = 0x7FC00000U;
    // The next code after the largest number is infinity in e5m2, and NaN in e4m3, which has no infinity.
    constexpr std::uint32_t kBehindTop = kTop + 1 == 0x7FU ? kNan : kInfinity;
    const float subnormal = static_cast<float>(static_cast<std::int32_t>(code)) *
                            std::bit_cast<float>((128U - kBias - kDigits) << 23);
    const std::uint32_t normal = (code << kCut) + ((127U - kBias) << 23);
    const std::uint32_t number = code < (1U << kDigits) ? std::bit_cast<std::uint32_t>(subnormal) : normal;
    return std::bit_cast<float>(code <= kTop ? number : code == kTop + 1 ? kBehindTop : kNan);
  }
};

template <DType kType, int kDigits, int kBias, std::uint32_t kTop>
constexpr float to_float(Fp8<kType, kDigits, kBias, kTop> x) {
  return x.value();
}

using Fp8E4M3 = Fp8<DType::kF8E4M3, 3, 7, 0x7E>;
using Fp8E5M2 = Fp8<DType::kF8E5M2, 2, 15, 0x7B>;

constexpr bool is_fp8(DType dtype) { return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2; }

// The scales that convert between values and codes of a tensor: code = nearest(value * scale), value = code *
// inverse.
struct Fp8Scales {
  float inverse, scale;
};

// Returns the scales that map a tensor's largest magnitude to the largest number of the format.
// `largest_magnitude`: the bits of this magnitude. A tensor of zeros has scale 1. A scale is at least 2^-126
// and at most 2^126 (for magnitudes below 2^-110). Therefore the inverse of a scale is a normal number. If an
// element is infinite or NaN, the scales and all codes are NaN, and so are all results of a product with
// these codes.
constexpr Fp8Scales fp8_scales(std::uint32_t largest_magnitude, float largest_code) {
  constexpr std::uint32_t kInfinity = 0x7F800000U;
  if (largest_magnitude == 0) return {1, 1};
  if (largest_magnitude >= kInfinity) {
    const auto nan = std::bit_cast<float>(0x7FC00000U);
    return {nan, nan};
  }
  const auto maximum = std::bit_cast<float>((127U + 126U) << 23), minimum = std::bit_cast<float>(1U << 23);
  const float scale = largest_code / std::bit_cast<float>(largest_magnitude);
  const float bounded = scale > maximum ? maximum : scale < minimum ? minimum : scale;
  return {1 / bounded, bounded};
}

// Returns the scales from the largest magnitude of earlier steps. A magnitude that is 0 or not finite leaves
// the scale `before` unchanged.
constexpr Fp8Scales delayed_fp8_scales(std::uint32_t largest_magnitude, float largest_code, float before) {
  constexpr std::uint32_t kInfinity = 0x7F800000U;
  if (largest_magnitude == 0 || largest_magnitude >= kInfinity) return {1 / before, before};
  return fp8_scales(largest_magnitude, largest_code);
}

// Calls body(Code{}) with the format of this type.
template <class Body>
void with_fp8_type(DType dtype, Body&& body) {
  if (dtype == DType::kF8E4M3) {
    body(Fp8E4M3{});
  } else {
    body(Fp8E5M2{});
  }
}

}  // namespace primus::turbo
