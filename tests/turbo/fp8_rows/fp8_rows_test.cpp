#include "turbo/fp8_rows/fp8_rows.h"

#include <bit>
#include <cmath>
#include <limits>

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

constexpr std::int64_t kGroup = Fp8RowLayout::kGroup;

class Fp8RowsTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, Fp8RowsTest, ::testing::ValuesIn(devices_under_test()));

// The numbers of a row after encoding and decoding, computed element by element.
Values coded(const double* row, std::int64_t cols, DType dtype) {
  Values result;
  for (std::int64_t begin = 0; begin < cols; begin += kGroup) {
    const std::int64_t end = std::min(begin + kGroup, cols);
    std::uint32_t largest = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(row[i])) & 0x7FFFFFFFU;
      largest = std::max(largest, bits);
    }
    const Fp8Scales scales = fp8_scales(largest, 448);
    for (std::int64_t i = begin; i < end; ++i) {
      const float code = Fp8E4M3::nearest(static_cast<float>(row[i]) * scales.scale).value();
      result.push_back(rounded(static_cast<double>(code * scales.inverse), dtype));
    }
  }
  return result;
}

// Widths: a single element, an incomplete group, complete groups, and groups whose last one is short.
TEST_P(Fp8RowsTest, RowsAreChosenEncodedAndDecoded) {
  OperatorBench bench(GetParam());
  constexpr std::int64_t kTokens = 7;
  const Values rows = {3, -1, 0, 6, 6, -1, 2, 1, 5};
  const auto count = static_cast<std::int64_t>(rows.size());
  for (const std::int64_t cols : {std::int64_t{1}, std::int64_t{30}, 2 * kGroup, 2 * kGroup + 36}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Values x = rounded(random_values(kTokens * cols, 1), dtype);
      // Groups differ by many orders of magnitude, and one group is zero.
      for (std::int64_t i = 0; i < kTokens * cols; ++i)
        x[static_cast<std::size_t>(i)] *=
            i / kGroup == 2 ? 0 : std::ldexp(1.0, static_cast<int>(i / kGroup * 9 % 60) - 30);
      const Tensor list = bench.upload(rows, DType::kI32, {count, 1});
      const Tensor encoded = bench.empty(DType::kU8, {count, Fp8RowLayout{cols}.bytes()});
      const Tensor out = bench.empty(dtype, {count, cols});
      bench.run(EncodeRows{.x = bench.upload(x, dtype, {kTokens, cols}), .rows = list, .out = encoded});
      bench.run(DecodeRows{.x = encoded, .used = list, .out = out});
      const Values got = bench.download(out);
      const std::vector<unsigned char> bytes = bench.bytes(encoded);
      for (std::size_t r = 0; r < rows.size(); ++r) {
        const auto* const at = got.data() + static_cast<std::int64_t>(r) * cols;
        if (rows[r] < 0) {
          EXPECT_TRUE(std::isnan(at[0]) && std::isnan(at[cols - 1])) << "an unused row was written";
          EXPECT_EQ(bytes[r * static_cast<std::size_t>(Fp8RowLayout{cols}.bytes())], 0xFF);
          continue;
        }
        const double* const from = x.data() + static_cast<std::int64_t>(rows[r]) * cols;
        EXPECT_EQ(Values(at, at + cols), coded(from, cols, dtype)) << "row " << r << " of width " << cols;
        // The bound of the header, plus the rounding of the result.
        for (std::int64_t i = 0; i < cols; ++i) {
          double largest = 0;
          for (std::int64_t k = i / kGroup * kGroup; k < std::min(cols, (i / kGroup + 1) * kGroup); ++k)
            largest = std::max(largest, std::abs(from[k]));
          const double bound = std::max(std::abs(from[i]) / 16, largest / 448 * 0x1p-10);
          EXPECT_LE(std::abs(at[i] - from[i]), bound * 1.001 + std::abs(from[i]) * rounding_error(dtype));
        }
      }
    }
  }
}

TEST_P(Fp8RowsTest, AnElementThatIsNotFiniteSpoilsOnlyItsGroup) {
  OperatorBench bench(GetParam());
  constexpr std::int64_t kCols = 3 * kGroup;
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    Values x(static_cast<std::size_t>(kCols), 1.5);
    x[static_cast<std::size_t>(kGroup) + 5] = bad;
    const Tensor list = bench.upload({0}, DType::kI32, {1, 1});
    const Tensor encoded = bench.empty(DType::kU8, {1, Fp8RowLayout{kCols}.bytes()});
    const Tensor out = bench.empty(DType::kF32, {1, kCols});
    bench.run(EncodeRows{.x = bench.upload(x, DType::kF32, {1, kCols}), .rows = list, .out = encoded});
    bench.run(DecodeRows{.x = encoded, .used = list, .out = out});
    const Values got = bench.download(out);
    for (std::int64_t i = 0; i < kCols; ++i) {
      const double value = got[static_cast<std::size_t>(i)];
      EXPECT_EQ(std::isnan(value), i / kGroup == 1) << i;
      if (i / kGroup != 1) {
        EXPECT_NEAR(value, 1.5, 1e-6);
      }
    }
  }
}

}  // namespace
}  // namespace primus::turbo::test
