#include "turbo/delta_gates/delta_gates.h"

#include <cmath>

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

struct Gates {
  Values g, beta;
};

Gates gates_of(const Values& ba, const Values& a_log, const Values& dt_bias) {
  Gates out;
  const std::size_t heads = a_log.size();
  for (std::size_t i = 0; i < ba.size() / 2; ++i) {
    const std::size_t row = i / heads, h = i % heads;
    const double x = ba[row * 2 * heads + heads + h] + dt_bias[h];
    out.g.push_back(-std::exp(a_log[h]) * (std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)))));
    out.beta.push_back(1 / (1 + std::exp(-ba[row * 2 * heads + h])));
  }
  return out;
}

class DeltaGatesTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, DeltaGatesTest, ::testing::ValuesIn(devices_under_test()));

TEST_P(DeltaGatesTest, ForwardAndGradients) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto& [rows, heads] : {std::pair{1, 1}, {37, 3}, {5, 32}}) {
      const std::int64_t n = std::int64_t{rows} * heads;
      // Some arguments are far from zero, where softplus is 0 or equals its argument.
      Values ba = random_values(2 * n, 1, 4);
      ba.front() = 60, ba.back() = -60;
      if (n > 1) ba[static_cast<std::size_t>(heads)] = 50;
      ba = rounded(ba, dtype);
      const Values a_log = rounded(random_values(heads, 2), DType::kF32),
                   dt_bias = rounded(random_values(heads, 3), DType::kF32),
                   d_g = rounded(random_values(n, 4), DType::kF32),
                   d_beta = rounded(random_values(n, 5), DType::kF32);
      const auto loss = [&](const Values& x, const Values& a, const Values& dt) {
        const Gates gates = gates_of(x, a, dt);
        return dot(gates.g, d_g) + dot(gates.beta, d_beta);
      };
      const Gates expected = gates_of(ba, a_log, dt_bias);
      const Values d_ba = numeric_gradient([&](const Values& v) { return loss(v, a_log, dt_bias); }, ba);
      Values d_weights = numeric_gradient([&](const Values& v) { return loss(ba, v, dt_bias); }, a_log);
      const Values of_bias = numeric_gradient([&](const Values& v) { return loss(ba, a_log, v); }, dt_bias);
      d_weights.insert(d_weights.end(), of_bias.begin(), of_bias.end());

      const Shape wide{rows, 2 * heads}, narrow{rows, heads};
      const Tensor on_ba = bench.upload(ba, dtype, wide), on_a = bench.upload(a_log, DType::kF32, {heads}),
                   on_dt = bench.upload(dt_bias, DType::kF32, {heads}),
                   on_d_g = bench.upload(d_g, DType::kF32, narrow),
                   on_d_beta = bench.upload(d_beta, DType::kF32, narrow),
                   g = bench.empty(DType::kF32, narrow), beta = bench.empty(DType::kF32, narrow),
                   weights = bench.empty(DType::kF32, {2 * heads});
      bench.run(DeltaGatesForward{.ba = on_ba, .a_log = on_a, .dt_bias = on_dt, .g = g, .beta = beta});
      EXPECT_LE(normalised_error(bench.download(g), expected.g), 2e-6);
      EXPECT_LE(normalised_error(bench.download(beta), expected.beta), 1e-6);
      bench.run(DeltaGatesBackwardWeight{.ba = on_ba,
                                         .a_log = on_a,
                                         .dt_bias = on_dt,
                                         .d_g = on_d_g,
                                         .d_weights = weights,
                                         .workspace = {}});
      EXPECT_LE(normalised_error(bench.download(weights), d_weights), 5e-6);
      bench.run(DeltaGatesBackwardInput{
          .ba = on_ba, .a_log = on_a, .dt_bias = on_dt, .d_g = on_d_g, .d_beta = on_d_beta, .d_ba = on_ba});
      EXPECT_LE(normalised_error(bench.download(on_ba), d_ba), rounding_error(dtype) + 2e-6);
    }
  }
}

}  // namespace
}  // namespace primus::turbo::test
