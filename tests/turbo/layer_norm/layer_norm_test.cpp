#include "turbo/layer_norm/layer_norm.h"

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

class LayerNormTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, LayerNormTest, ::testing::ValuesIn(devices_under_test()));

TEST_P(LayerNormTest, EqualsTheReference) {
  OperatorBench bench(GetParam());
  constexpr double kEps = 1e-6;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t n : {1, 5, 128, 300}) {
      constexpr std::int64_t kRows = 9;
      Values x = random_values(kRows * n, 1);
      for (double& value : x) value += 3;  // makes the mean far from zero
      x = rounded(x, dtype);
      const Values weight = rounded(random_values(n, 2), dtype),
                   bias = rounded(random_values(n, 3), DType::kF32);
      Values expected;
      for (std::int64_t row = 0; row < kRows; ++row) {
        const double* const of_row = x.data() + row * n;
        double mean = 0, variance = 0;
        for (std::int64_t i = 0; i < n; ++i) mean += of_row[i] / static_cast<double>(n);
        for (std::int64_t i = 0; i < n; ++i)
          variance += (of_row[i] - mean) * (of_row[i] - mean) / static_cast<double>(n);
        for (std::int64_t i = 0; i < n; ++i) {
          const auto at = static_cast<std::size_t>(i);
          expected.push_back((of_row[i] - mean) / std::sqrt(variance + kEps) * weight[at] + bias[at]);
        }
      }
      const Tensor y = bench.upload(x, dtype, {kRows, n});  // the result overwrites x
      bench.run(LayerNorm{.x = y,
                          .weight = bench.upload(weight, dtype, {n}),
                          .bias = bench.upload(bias, DType::kF32, {n}),
                          .y = y,
                          .eps = static_cast<float>(kEps)});
      EXPECT_LE(normalised_error(bench.download(y), expected), rounding_error(dtype) + 2e-6) << n;
    }
  }
}

}  // namespace
}  // namespace primus::turbo::test
