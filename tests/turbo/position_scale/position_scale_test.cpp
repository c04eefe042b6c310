#include "turbo/position_scale/position_scale.h"

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

class PositionScaleTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, PositionScaleTest, ::testing::ValuesIn(devices_under_test()));

// Tests positions that are counted from `first`, 0 or 1.
void expect_leading_columns(DeviceUnderTest device, int first) {
  OperatorBench bench(device);
  constexpr std::int64_t kTokens = 60, kWidth = 21, kCols = 13;
  Values positions;
  for (int i = 0; i < kTokens; ++i) positions.push_back(i == 0 ? 31 : i * 7);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Values x = rounded(random_values(kTokens * kWidth, 1), dtype);
    Values expected = x;
    for (std::size_t row = 0; row < kTokens; ++row) {
      for (std::size_t i = 0; i < kCols; ++i)
        expected[row * kWidth + i] *= 1 + 0.1 * std::log(1 + std::floor((positions[row] + first) / 32));
    }
    const Tensor x_device = bench.upload(x, dtype, {kTokens, kWidth});
    const Tensor apart = bench.empty(dtype, {kTokens, kWidth});
    for (const Tensor& y : {apart, x_device}) {
      bench.run(PositionScale{.x = x_device,
                              .y = y,
                              .positions = bench.upload(positions, DType::kI32, {kTokens}),
                              .cols = kCols,
                              .floor_scale = 32,
                              .attn_scale = 0.1F,
                              .first = first});
      EXPECT_LE(normalised_error(bench.download(y), expected), rounding_error(dtype) + 2e-7);
    }
  }
}

TEST_P(PositionScaleTest, ScalesTheLeadingColumns) { expect_leading_columns(GetParam(), 1); }

TEST_P(PositionScaleTest, CountsPositionsFromZeroOnRequest) { expect_leading_columns(GetParam(), 0); }

}  // namespace
}  // namespace primus::turbo::test
