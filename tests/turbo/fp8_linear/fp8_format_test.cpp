// Tests both fp8 formats: compares every code with its definition, and tests rounding at every tie.
#include "turbo/fp8_linear/fp8_format.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/random/random.h"
#include "turbo/fp8_linear/fp8_fnuz.h"

namespace primus::turbo {
namespace {

// Returns the value of a code by the specification.
template <class Code>
struct Definition;
template <>
struct Definition<Fp8E4M3> {
  static constexpr int kDigits = 3, kBias = 7, kTop = 0x7E;
  static constexpr bool kHasInfinity = false;
};
template <>
struct Definition<Fp8E5M2> {
  static constexpr int kDigits = 2, kBias = 15, kTop = 0x7B;
  static constexpr bool kHasInfinity = true;
};

template <class Code>
double defined(int code) {
  using D = Definition<Code>;
  const int magnitude = code & 0x7F, exponent = magnitude >> D::kDigits,
            digits = magnitude & ((1 << D::kDigits) - 1);
  double value = 0;
  if (magnitude > D::kTop)
    value = D::kHasInfinity && magnitude == D::kTop + 1 ? INFINITY : NAN;
  else if (exponent == 0)
    value = std::ldexp(digits, 1 - D::kBias - D::kDigits);
  else
    value = std::ldexp(digits + (1 << D::kDigits), exponent - D::kBias - D::kDigits);
  return (code & 0x80) != 0 ? -value : value;
}

template <class Code>
int nearest(double x) {
  EXPECT_EQ(static_cast<double>(static_cast<float>(x)), x);
  return Code::nearest(static_cast<float>(x)).bits;
}

template <class Code>
class Fp8Format : public ::testing::Test {};
using Formats = ::testing::Types<Fp8E4M3, Fp8E5M2>;
TYPED_TEST_SUITE(Fp8Format, Formats);

TYPED_TEST(Fp8Format, EveryCodeConvertsToFloatAndBack) {
  for (int code = 0; code < 256; ++code) {
    const double expected = defined<TypeParam>(code);
    const float value = TypeParam{static_cast<std::uint8_t>(code)}.value();
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << code;
      continue;
    }
    EXPECT_EQ(static_cast<double>(value), expected) << code;
    EXPECT_EQ(std::signbit(value), code >= 128) << code;
    if (std::isfinite(expected)) {
      EXPECT_EQ(nearest<TypeParam>(expected), code);
    }
  }
  EXPECT_EQ(static_cast<double>(TypeParam::largest()), defined<TypeParam>(Definition<TypeParam>::kTop));
}

TYPED_TEST(Fp8Format, RoundsToNearestEven) {
  for (int code = 0; code < Definition<TypeParam>::kTop; ++code) {
    const double middle = (defined<TypeParam>(code) + defined<TypeParam>(code + 1)) / 2;
    const double below = std::nextafterf(static_cast<float>(middle), 0.0F),
                 above = std::nextafterf(static_cast<float>(middle), INFINITY);
    for (const int sign : {0, 0x80}) {
      const double s = sign == 0 ? 1 : -1;
      EXPECT_EQ(nearest<TypeParam>(s * middle), sign | (code % 2 == 0 ? code : code + 1)) << code;
      EXPECT_EQ(nearest<TypeParam>(s * below), sign | code);
      EXPECT_EQ(nearest<TypeParam>(s * above), sign | (code + 1));
    }
  }
}

TYPED_TEST(Fp8Format, LargeNumbersBecomeTheLargestCodeAndNanStaysNan) {
  constexpr int kTop = Definition<TypeParam>::kTop;
  const float largest = TypeParam::largest();
  for (const float x : {std::nextafter(largest, INFINITY), largest * 1.0625F, largest * 1.125F, largest * 2,
                        std::numeric_limits<float>::max(), INFINITY}) {
    EXPECT_EQ(TypeParam::nearest(x).bits, kTop) << x;
    EXPECT_EQ(TypeParam::nearest(-x).bits, kTop | 0x80) << x;
  }
  for (const std::uint32_t nan : {0x7FC00000U, 0xFFC00000U, 0x7F800001U, 0x7FFFFFFFU, 0xFFFFFFFFU})
    EXPECT_EQ(TypeParam::nearest(std::bit_cast<float>(nan)).bits, 0x7F) << nan;
}

TYPED_TEST(Fp8Format, SmallNumbersBecomeZeroOfTheirSign) {
  for (const float x : {0.0F, std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::min(),
                        static_cast<float>(defined<TypeParam>(1) / 2)}) {
    EXPECT_EQ(TypeParam::nearest(x).bits, 0) << x;
    EXPECT_EQ(TypeParam::nearest(-x).bits, 0x80) << x;
  }
}

// For floats of all exponents, compares the code with the result of a search through all codes.
TYPED_TEST(Fp8Format, NumbersOfAnyMagnitudeRoundToTheNearestCode) {
  const RandomStream random(7, RandomPurpose::kTest);
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const float x = std::bit_cast<float>(random.bits(i));
    if (!std::isfinite(x)) continue;
    double best = INFINITY;
    for (int code = 0; code <= Definition<TypeParam>::kTop; ++code)
      best = std::min(best, std::abs(std::abs(static_cast<double>(x)) - defined<TypeParam>(code)));
    const float value = TypeParam::nearest(x).value();
    EXPECT_EQ(std::abs(static_cast<double>(x) - static_cast<double>(value)), best) << x;
  }
}

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

TEST(Fp8Scales, TheLargestMagnitudeBecomesTheLargestCode) {
  for (const float largest : {1.0F, 448.0F, 3e-30F, 7.25F, std::numeric_limits<float>::max()}) {
    const Fp8Scales scales = fp8_scales(bits(largest), Fp8E4M3::largest());
    EXPECT_EQ(Fp8E4M3::nearest(largest * scales.scale).bits, 0x7E) << largest;
    EXPECT_NEAR(scales.inverse * scales.scale, 1, 1e-6) << largest;
  }
}

// Returns the value of a code in the formats of gfx942, by their definition: no negative zero, no infinity.
template <class Code>
double fnuz_value(std::uint32_t code) {
  constexpr int kDigits = Definition<Code>::kDigits, kBias = Definition<Code>::kBias + 1;
  if (code == 0x80U) return std::numeric_limits<double>::quiet_NaN();
  const int exponent = static_cast<int>((code & 0x7FU) >> kDigits);
  const int fraction = static_cast<int>(code & ((1U << kDigits) - 1));
  const double magnitude = exponent == 0 ? std::ldexp(fraction, 1 - kBias - kDigits)
                                         : std::ldexp((1 << kDigits) + fraction, exponent - kBias - kDigits);
  return (code & 0x80U) != 0 ? -magnitude : magnitude;
}

template <class Code>
void expect_half_values() {
  constexpr auto kTop = static_cast<std::uint32_t>(Definition<Code>::kTop);
  for (std::uint32_t code = 0; code < 256; ++code) {
    const float ocp = Code{static_cast<std::uint8_t>(code)}.value();
    const std::uint32_t converted = fnuz_code(code, kTop);
    ASSERT_LT(converted, 256U);
    if (!std::isfinite(ocp)) {
      EXPECT_EQ(converted, 0x80U) << code;
    } else {
      EXPECT_EQ(fnuz_value<Code>(converted) * kFnuzFactor, static_cast<double>(ocp)) << code;
    }
  }
}

TEST(Fp8Fnuz, CodesHaveHalfTheValueOfOcpCodes) {
  expect_half_values<Fp8E4M3>();
  expect_half_values<Fp8E5M2>();
  // The largest numbers of both formats, from AMD's documentation of the MI300.
  EXPECT_EQ(fnuz_value<Fp8E4M3>(0x7F), 240);
  EXPECT_EQ(fnuz_value<Fp8E5M2>(0x7F), 57344);
}

TEST(Fp8Scales, HandleZerosTinyNumbersAndNan) {
  const Fp8Scales zeros = fp8_scales(0, Fp8E5M2::largest());
  EXPECT_EQ(zeros.scale, 1);
  EXPECT_EQ(zeros.inverse, 1);
  for (const float tiny :
       {1e-36F, std::numeric_limits<float>::min(), std::numeric_limits<float>::denorm_min()}) {
    const Fp8Scales scales = fp8_scales(bits(tiny), Fp8E5M2::largest());
    EXPECT_EQ(scales.scale, 0x1p126F);
    EXPECT_EQ(scales.inverse, 0x1p-126F);
  }
  for (const std::uint32_t wrong : {0x7F800000U, 0x7F800001U, 0x7FC00000U}) {
    EXPECT_TRUE(std::isnan(fp8_scales(wrong, Fp8E4M3::largest()).scale));
    EXPECT_TRUE(std::isnan(fp8_scales(wrong, Fp8E4M3::largest()).inverse));
  }
}

}  // namespace
}  // namespace primus::turbo
