#include "turbo/channel_gate/channel_gate.h"

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

class ChannelGateTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, ChannelGateTest, ::testing::ValuesIn(devices_under_test()));

constexpr std::int64_t kTokens = 7, kHeads = 3;

Values slice(const Values& all, std::size_t begin, std::size_t size) {
  const auto from = all.begin() + static_cast<std::ptrdiff_t>(begin);
  return {from, from + static_cast<std::ptrdiff_t>(size)};
}

// `all` concatenates z, b, a_log and bias. Returns g, then beta.
Values gates(const Values& all, std::size_t channels, double lower_bound) {
  const std::size_t heads = kHeads, width = heads * channels, tokens = kTokens;
  const double *z = all.data(), *b = z + tokens * width, *a_log = b + tokens * heads, *bias = a_log + heads;
  Values out;
  for (std::size_t i = 0; i < tokens * width; ++i) {
    const double rate = std::exp(a_log[i % width / channels]), x = z[i] + bias[i % width];
    out.push_back(lower_bound < 0 ? lower_bound / (1 + std::exp(-rate * x))
                                  : -rate * std::log1p(std::exp(x)));
  }
  for (std::size_t i = 0; i < tokens * heads; ++i) out.push_back(1 / (1 + std::exp(-b[i])));
  return out;
}

TEST_P(ChannelGateTest, ForwardAndBackward) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t channels : {1, 20}) {
      for (const float lower_bound : {0.0F, -5.0F}) {
        const std::int64_t width = kHeads * channels;
        const auto of_z = static_cast<std::size_t>(kTokens * width),
                   of_b = static_cast<std::size_t>(kTokens * kHeads);
        const auto wide = static_cast<std::size_t>(width), heads = static_cast<std::size_t>(kHeads);
        Values all = rounded(random_values(kTokens * (width + kHeads), 1, 2.0), dtype);
        for (const double w : rounded(random_values(kHeads + width, 2), DType::kF32)) all.push_back(w);
        const ChannelGates of{
            .z = bench.upload(slice(all, 0, of_z), dtype, {kTokens, width}),
            .b = bench.upload(slice(all, of_z, of_b), dtype, {kTokens, kHeads}),
            .a_log = bench.upload(slice(all, of_z + of_b, heads), DType::kF32, {kHeads}),
            .bias = bench.upload(slice(all, of_z + of_b + heads, wide), DType::kF32, {width}),
            .lower_bound = lower_bound};
        const Tensor g = bench.empty(DType::kF32, {kTokens, width}),
                     beta = bench.empty(DType::kF32, {kTokens, kHeads});
        bench.run(ChannelGateForward{.of = of, .g = g, .beta = beta});
        const auto reference = [&](const Values& v) {
          return gates(v, static_cast<std::size_t>(channels), static_cast<double>(lower_bound));
        };
        const Values expected = reference(all);
        EXPECT_LE(normalised_error(bench.download(g), slice(expected, 0, of_z)), 2e-6);
        EXPECT_LE(normalised_error(bench.download(beta), slice(expected, of_z, of_b)), 1e-6);

        const Values d = rounded(random_values(kTokens * (width + kHeads), 3), DType::kF32);
        const Values gradient = numeric_gradient([&](const Values& v) { return dot(reference(v), d); }, all);
        const Tensor d_g = bench.upload(slice(d, 0, of_z), DType::kF32, {kTokens, width});
        const Tensor d_beta = bench.upload(slice(d, of_z, of_b), DType::kF32, {kTokens, kHeads});
        const Tensor d_z = bench.empty(dtype, {kTokens, width}), d_b = bench.empty(dtype, {kTokens, kHeads});
        bench.run(ChannelGateBackward{.of = of, .d_g = d_g, .d_beta = d_beta, .d_z = d_z, .d_b = d_b});
        const double tolerance = rounding_error(dtype) + 3e-6;
        EXPECT_LE(normalised_error(bench.download(d_z), slice(gradient, 0, of_z)), tolerance);
        EXPECT_LE(normalised_error(bench.download(d_b), slice(gradient, of_z, of_b)), tolerance);
        const Tensor d_weight = bench.empty(DType::kF32, {width + kHeads});
        bench.run(ChannelGateBackwardWeight{.of = of, .d_g = d_g, .d_weight = d_weight, .workspace = {}});
        const Values weights = bench.download(d_weight);
        EXPECT_LE(normalised_error(slice(weights, 0, wide), slice(gradient, of_z + of_b + heads, wide)),
                  5e-6);
        EXPECT_LE(normalised_error(slice(weights, wide, heads), slice(gradient, of_z + of_b, heads)), 5e-6);
      }
    }
  }
}

// Biases b are mapped so that log(softplus(b)) is uniform between log(low) and log(high).
TEST_P(ChannelGateTest, BiasesCoverARangeOfRates) {
  OperatorBench bench(GetParam());
  const Tensor x = bench.upload({-40, 0, 40}, DType::kF32, {3});
  bench.run(ChannelGateBias{.x = x, .low = 1e-3F, .high = 1e-1F});
  const Values biases = bench.download(x);
  for (const auto& [i, rate] : {std::pair{0, 1e-3}, {1, 1e-2}, {2, 1e-1}})
    EXPECT_NEAR(std::log1p(std::exp(biases[static_cast<std::size_t>(i)])) / rate, 1, 1e-5);
}

TEST_P(ChannelGateTest, LargeArgumentsStayFinite) {
  OperatorBench bench(GetParam());
  const Tensor g = bench.empty(DType::kF32, {1, 2}), beta = bench.empty(DType::kF32, {1, 1});
  bench.run(ChannelGateForward{.of = {.z = bench.upload({1e4, -1e4}, DType::kF32, {1, 2}),
                                      .b = bench.upload({0}, DType::kF32, {1, 1}),
                                      .a_log = bench.upload({0}, DType::kF32, {1}),
                                      .bias = bench.upload({0, 0}, DType::kF32, {2}),
                                      .lower_bound = 0},
                               .g = g,
                               .beta = beta});
  EXPECT_EQ(bench.download(g), (Values{-1e4, 0}));
}

}  // namespace
}  // namespace primus::turbo::test
