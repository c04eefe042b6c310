#include "turbo/situ/situ.h"

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

class SituTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, SituTest, ::testing::ValuesIn(devices_under_test()));

// The first width is odd, and the second allows vectors.
constexpr std::int64_t kTokens = 3, kWidths[] = {33, 64};

Values reference(const Values& gate_up, std::int64_t ffn, double beta, double linear_beta) {
  Values out;
  for (std::int64_t row = 0; row < kTokens; ++row) {
    for (std::int64_t i = 0; i < ffn; ++i) {
      const double g = gate_up[static_cast<std::size_t>(row * 2 * ffn + i)];
      const double u = gate_up[static_cast<std::size_t>(row * 2 * ffn + ffn + i)];
      const double up = linear_beta > 0 ? linear_beta * std::tanh(u / linear_beta) : u;
      out.push_back(beta * std::tanh(g / beta) / (1 + std::exp(-g)) * up);
    }
  }
  return out;
}

TEST_P(SituTest, ForwardAndBackward) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t ffn : kWidths) {
      const Values gate_up = rounded(random_values(kTokens * 2 * ffn, 1, 3.0), dtype);
      const Values d_out = rounded(random_values(kTokens * ffn, 2), dtype);
      for (const auto& [beta, linear_beta] : {std::pair{4.0F, 25.0F}, {1.5F, 2.0F}, {1.0F, 0.0F}}) {
        const double b = static_cast<double>(beta), l = static_cast<double>(linear_beta);
        const Tensor device = bench.upload(gate_up, dtype, {kTokens, 2 * ffn});
        const Tensor out = bench.empty(dtype, {kTokens, ffn});
        // tanh is accurate to 4 ulp; a sigmoid and three products follow.
        const double tolerance = rounding_error(dtype) + 1e-6;
        bench.run(SituForward{.gate_up = device, .out = out, .beta = beta, .linear_beta = linear_beta});
        EXPECT_LE(normalised_error(bench.download(out), reference(gate_up, ffn, b, l)), tolerance);
        const auto loss = [&](const Values& v) { return dot(reference(v, ffn, b, l), d_out); };
        bench.run(SituBackward{.gate_up = device,
                               .d_out = bench.upload(d_out, dtype, {kTokens, ffn}),
                               .d_gate_up = device,
                               .beta = beta,
                               .linear_beta = linear_beta});
        EXPECT_LE(normalised_error(bench.download(device), numeric_gradient(loss, gate_up)), tolerance);
      }
    }
  }
}

TEST_P(SituTest, ResultsStayWithinTheProductOfTheClamps) {
  OperatorBench bench(GetParam());
  const Tensor gate_up = bench.upload({1e30, -1e30, 1e30, 1e30}, DType::kF32, {1, 4});
  const Tensor out = bench.empty(DType::kF32, {1, 2});
  bench.run(SituForward{.gate_up = gate_up, .out = out, .beta = 4, .linear_beta = 25});
  const Values values = bench.download(out);
  EXPECT_EQ(values[0], 100);
  EXPECT_NEAR(values[1], 0, 1e-30);
}

}  // namespace
}  // namespace primus::turbo::test
