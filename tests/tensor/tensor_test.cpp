#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tensor/bfloat16.h"

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
  EXPECT_EQ(through(1.0F + 0x1p-8F), 1.0F);                // halfway, down to even
  EXPECT_EQ(through(1.0F + 3 * 0x1p-8F), 1.0F + 0x1p-6F);  // halfway, up to even
  EXPECT_EQ(through(1.0F + 0x1p-8F + 0x1p-20F), 1.0F + 0x1p-7F);
  EXPECT_EQ(through(-1.0F - 0x1p-8F), -1.0F);
  EXPECT_EQ(through(std::numeric_limits<float>::max()), std::numeric_limits<float>::infinity());
  EXPECT_EQ(through(-std::numeric_limits<float>::infinity()), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(through(std::numeric_limits<float>::quiet_NaN())));
  // A NaN whose payload sits in the lower half only.
  EXPECT_TRUE(std::isnan(through(std::bit_cast<float>(0x7f800001U))));
  EXPECT_TRUE(std::signbit(through(-0.0F)));
}

}  // namespace
}  // namespace primus
