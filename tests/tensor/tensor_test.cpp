#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tensor/bfloat16.h"
#include "tensor/float16.h"

namespace primus {
namespace {

TEST(Shape, CountsAndPrints) {
  EXPECT_EQ(Shape().elements(), 1);
  EXPECT_EQ(Shape({2, 3, 4}).elements(), 24);
  EXPECT_EQ(Shape({2, 0}).elements(), 0);
  EXPECT_EQ(Shape({2, 3}).to_string(), "[2, 3]");
  EXPECT_EQ(Shape().to_string(), "[]");
  EXPECT_EQ(Shape({2, 3}), Shape({2, 3}));
  EXPECT_NE(Shape({2, 3}), Shape({3, 2}));
  EXPECT_NE(Shape({2}), Shape({2, 1}));
}

TEST(Tensor, RowsAndColumns) {
  const Tensor x(nullptr, DType::kBF16, {2, 3, 4});
  EXPECT_EQ(x.cols(), 4);
  EXPECT_EQ(x.rows(), 6);
  EXPECT_EQ(x.bytes(), 48);
  EXPECT_FALSE(x.absent());
  EXPECT_TRUE(Tensor().absent());
}

TEST(Tensor, SlicesAlongTheFirstDimension) {
  float memory[24];
  const Tensor x(memory, DType::kF32, {4, 2, 3});
  const Tensor middle = x.slice(1, 3);
  EXPECT_EQ(middle.data, memory + 6);
  EXPECT_EQ(middle.shape, Shape({2, 2, 3}));
  EXPECT_EQ(x.reshaped({6, 4}).slice(5, 6).data, memory + 20);
  EXPECT_EQ(Tensor(nullptr, DType::kF32, {4, 6}).slice(2, 4).data, nullptr);  // measure mode
}

TEST(DType, SizesAndNames) {
  EXPECT_EQ(size_of(DType::kF64), 8);
  EXPECT_EQ(size_of(DType::kBF16), 2);
  EXPECT_EQ(size_of(DType::kBool), 1);
  EXPECT_EQ(name_of(DType::kBF16), "bf16");
  EXPECT_EQ(name_of(DType::kF32), "fp32");
}

TEST(BFloat16, RoundsToNearestEven) {
  const auto through = [](float x) { return static_cast<float>(BFloat16(x)); };
  EXPECT_EQ(through(1.0F), 1.0F);
  EXPECT_EQ(through(1.0F + 0x1p-8F), 1.0F);                // halfway, to even: down
  EXPECT_EQ(through(1.0F + 3 * 0x1p-8F), 1.0F + 0x1p-6F);  // halfway, to even: up
  EXPECT_EQ(through(1.0F + 0x1p-8F + 0x1p-20F), 1.0F + 0x1p-7F);
  EXPECT_EQ(through(-1.0F - 0x1p-8F), -1.0F);
  EXPECT_EQ(through(std::numeric_limits<float>::max()), std::numeric_limits<float>::infinity());
  EXPECT_EQ(through(-std::numeric_limits<float>::infinity()), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(through(std::numeric_limits<float>::quiet_NaN())));
  // Tests a NaN whose payload is only in the lower half.
  EXPECT_TRUE(std::isnan(through(std::bit_cast<float>(0x7f800001U))));
  EXPECT_TRUE(std::signbit(through(-0.0F)));
}

Float16 half_of(std::uint32_t bits) {
  Float16 half;
  half.bits = static_cast<std::uint16_t>(bits);
  return half;
}

// Returns the value of a code, as defined by IEEE 754.
double value_of_half(std::uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 10 & 0x1fU), mantissa = static_cast<int>(bits & 0x3ffU);
  const double sign = bits & 0x8000U ? -1 : 1;
  if (exponent == 0x1f) return mantissa == 0 ? sign * INFINITY : std::copysign(NAN, sign);
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(Float16, EveryCodeConvertsToFloatAndBack) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto value = static_cast<float>(half_of(bits));
    const double expected = value_of_half(bits);
    EXPECT_EQ(std::signbit(value), (bits & 0x8000U) != 0) << bits;
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_TRUE(std::isnan(static_cast<float>(Float16(value)))) << bits;
      EXPECT_EQ(Float16(value).bits | 0x0200U, bits | 0x0200U) << bits;  // keeps the payload, quiets the NaN
      continue;
    }
    EXPECT_EQ(static_cast<double>(value), expected) << bits;
    EXPECT_EQ(Float16(value).bits, bits);
  }
}

// For each pair of adjacent numbers: a value below the midpoint is rounded to the lower number, a value above
// the midpoint to the upper number, and the midpoint to the even number. The number after the largest finite
// number is 65536, which is rounded to infinity.
TEST(Float16, RoundsToNearestEven) {
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const double low = value_of_half(bits), high = bits == 0x7bff ? 65536 : value_of_half(bits + 1);
    const auto middle = static_cast<float>((low + high) / 2);  // exact, with one more bit
    const std::uint32_t even = bits + (bits & 1U);
    for (const float sign : {1.0F, -1.0F}) {
      const std::uint32_t sign_bit = sign < 0 ? 0x8000U : 0;
      EXPECT_EQ(Float16(sign * middle).bits, sign_bit | even) << bits;
      EXPECT_EQ(Float16(sign * std::nextafter(middle, 0.0F)).bits, sign_bit | bits) << bits;
      EXPECT_EQ(Float16(sign * std::nextafter(middle, 1e9F)).bits, sign_bit | (bits + 1)) << bits;
    }
  }
}

TEST(Float16, LargeNumbersBecomeInfiniteAndSmallNumbersZero) {
  for (const float large : {65536.0F, 1e10F, std::numeric_limits<float>::max(), INFINITY}) {
    EXPECT_EQ(Float16(large).bits, 0x7c00U) << large;
    EXPECT_EQ(Float16(-large).bits, 0xfc00U) << large;
  }
  for (const float small : {0.0F, 1e-10F, std::numeric_limits<float>::denorm_min()}) {
    EXPECT_EQ(Float16(small).bits, 0U) << small;
    EXPECT_EQ(Float16(-small).bits, 0x8000U) << small;
  }
}

}  // namespace
}  // namespace primus
