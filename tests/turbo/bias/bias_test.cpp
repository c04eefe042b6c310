#include "turbo/bias/bias.h"

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

class BiasTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, BiasTest, ::testing::ValuesIn(devices_under_test()));

TEST_P(BiasTest, AddsForwardAndSumsGradients) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto& [tokens, n] :
         {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 77}, {300, 64}, {9000, 5}}) {
      const Values x = rounded(random_values(tokens * n, 1), dtype),
                   bias = rounded(random_values(n, 2), dtype);
      Values y = x, sums(static_cast<std::size_t>(n), 0.5);
      for (std::size_t i = 0; i < x.size(); ++i) {
        y[i] += bias[i % bias.size()];
        sums[i % bias.size()] += x[i];
      }
      const Tensor x_device = bench.upload(x, dtype, {tokens, n}),
                   bias_device = bench.upload(bias, dtype, {n});
      const Tensor d_bias = bench.upload(Values(bias.size(), 0.5), DType::kF32, {n});
      bench.run(
          AddBiasBackwardWeight{.d_y = x_device, .d_bias = d_bias, .accumulate = true, .workspace = {}});
      EXPECT_LE(normalised_error(bench.download(d_bias), sums), 1e-6) << tokens;
      const Tensor narrow = bench.upload(Values(bias.size(), 0.5), DType::kBF16, {n});
      bench.run(
          AddBiasBackwardWeight{.d_y = x_device, .d_bias = narrow, .accumulate = true, .workspace = {}});
      EXPECT_LE(normalised_error(bench.download(narrow), sums), rounding_error(DType::kBF16)) << tokens;
      const Tensor apart = bench.empty(dtype, {tokens, n});
      for (const Tensor& out : {apart, x_device}) {
        bench.run(AddBias{.x = x_device, .bias = bias_device, .y = out});
        EXPECT_LE(normalised_error(bench.download(out), y), rounding_error(dtype)) << tokens;
      }
      for (double& sum : sums) sum -= 0.5;
      const Tensor again = bench.upload(x, dtype, {tokens, n});
      bench.run(AddBiasBackwardWeight{.d_y = again, .d_bias = d_bias, .accumulate = false, .workspace = {}});
      EXPECT_LE(normalised_error(bench.download(d_bias), sums), 1e-6) << tokens;
    }
  }
}

TEST(Bias, ThreadsDoNotChangeTheGradient) {
  OperatorBench one({.threads = 1}), three({.threads = 3});
  const auto run = [](OperatorBench& bench) {
    const Tensor d_y = bench.upload(random_values(1000 * 33, 1), DType::kF32, {1000, 33});
    const Tensor d_bias = bench.empty(DType::kF32, {33});
    bench.run(AddBiasBackwardWeight{.d_y = d_y, .d_bias = d_bias, .accumulate = false, .workspace = {}});
    return bench.bytes(d_bias);
  };
  EXPECT_EQ(run(one), run(three));
}

}  // namespace
}  // namespace primus::turbo::test
