#include "turbo/muon/muon.h"

#include "turbo/operator_test.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::test {
namespace {

class MuonTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, MuonTest, ::testing::ValuesIn(devices_under_test()));

TEST_P(MuonTest, MomentumFollowsTheReference) {
  OperatorBench bench(GetParam());
  constexpr double kBeta = 0.9375;
  for (const bool nesterov : {false, true}) {
    for (const std::int64_t n : {1, 46, 20012}) {
      Values m(static_cast<std::size_t>(n)), expected(m.size());
      const Tensor momentum = bench.zeros(DType::kF32, {n}), direction = bench.empty(DType::kF32, {n});
      for (int step = 1; step <= 10; ++step) {
        const double scale = rounded(1.0 / step, DType::kF32);
        const Values grad = rounded(random_values(n, static_cast<std::uint64_t>(step)), DType::kF32);
        for (std::size_t i = 0; i < grad.size(); ++i) {
          const double g = grad[i] * scale;
          m[i] = kBeta * m[i] + (1 - kBeta) * g;
          expected[i] = nesterov ? kBeta * m[i] + (1 - kBeta) * g : m[i];
        }
        bench.run(MuonMomentum{.grad = bench.upload(grad, DType::kF32, {n}),
                               .momentum = momentum,
                               .direction = direction,
                               .grad_scale = bench.upload({scale}, DType::kF32, {1}),
                               .beta = static_cast<float>(kBeta),
                               .nesterov = nesterov});
      }
      EXPECT_LE(normalised_error(bench.download(momentum), m), 2e-6);
      EXPECT_LE(normalised_error(bench.download(direction), expected), 2e-6);
    }
  }
}

TEST_P(MuonTest, Bf16GradientsAreReadDirectly) {
  OperatorBench bench(GetParam());
  for (const std::int64_t n : {47, 4096}) {
    const Values grad = rounded(random_values(n, 1), DType::kBF16);
    const auto update = [&](DType type) {
      const Tensor momentum = bench.upload(random_values(n, 2), DType::kF32, {n});
      const Tensor direction = bench.empty(DType::kF32, {n});
      bench.run(MuonMomentum{.grad = bench.upload(grad, type, {n}),
                             .momentum = momentum,
                             .direction = direction,
                             .grad_scale = bench.upload({0.75}, DType::kF32, {1}),
                             .beta = 0.9F,
                             .nesterov = true});
      return std::pair(bench.download(momentum), bench.download(direction));
    };
    EXPECT_EQ(update(DType::kBF16), update(DType::kF32)) << n;
  }
}

TEST_P(MuonTest, NormalizesByTheFrobeniusNorm) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::int64_t n = 3001;
    const Values x = rounded(random_values(n, 3), DType::kF32);
    Values expected = x;
    for (double& value : expected) value /= 7;
    const Tensor out = bench.empty(dtype, {n});
    const Tensor from = bench.upload(x, DType::kF32, {n});
    bench.run(MuonNormalize{.x = from, .sum_of_squares = bench.upload({49}, DType::kF64, {1}), .out = out});
    // Both the factor and the product are rounded, so there are two rounding errors.
    EXPECT_LE(normalised_error(bench.download(out), expected), rounding_error(dtype) + 2 * 0x1p-24);
    // A zero matrix stays zero.
    const Tensor none = bench.zeros(DType::kF32, {n});
    bench.run(MuonNormalize{.x = none, .sum_of_squares = bench.zeros(DType::kF64, {1}), .out = out});
    EXPECT_EQ(bench.download(out), Values(static_cast<std::size_t>(n)));
  }
}

TEST_P(MuonTest, PolynomialOfASymmetricMatrix) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t k : {1, 37}) {
      const Values gram = rounded(random_values(k * k, 4), DType::kF32);
      const Values square = rounded(random_values(k * k, 5), DType::kF32);
      Values expected(gram.size());
      for (std::int64_t i = 0; i < k * k; ++i) {
        const auto at = static_cast<std::size_t>(i);
        expected[at] = -4.75 * gram[at] + 2.03125 * square[at] + (i / k == i % k ? 3.4375 : 0);
      }
      const Tensor out = bench.empty(dtype, {k, k});
      bench.run(MuonPolynomial{.gram = bench.upload(gram, DType::kF32, {k, k}),
                               .square = bench.upload(square, DType::kF32, {k, k}),
                               .out = out,
                               .a = 3.4375F,
                               .b = -4.75F,
                               .c = 2.03125F});
      // Two products and two sums are each rounded, and the terms may cancel.
      EXPECT_LE(normalised_error(bench.download(out), expected), rounding_error(dtype) + 8 * 0x1p-24);
    }
  }
}

TEST_P(MuonTest, UpdateFollowsTheReference) {
  OperatorBench bench(GetParam());
  const Tensor scalars = bench.upload({1, 0.01, 0.125, 0, 0}, DType::kF64, {kStepScalars});
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t n : {1, 47, 20012}) {
      const Values p = rounded(random_values(n, 6), DType::kF32), d = rounded(random_values(n, 7), dtype);
      Values expected(p.size());
      for (std::size_t i = 0; i < p.size(); ++i)
        expected[i] = p[i] * (1 - 0.01 * 0.125 * 0.5) - 0.01 * 8 * d[i];
      const Tensor param = bench.upload(p, DType::kF32, {n}), working = bench.empty(DType::kBF16, {n});
      const MuonUpdate call{.param = param,
                            .direction = bench.upload(d, dtype, {n}),
                            .grad_scale = bench.upload({0.5}, DType::kF32, {1}),
                            .working = working,
                            .scalars = scalars,
                            .scale = 8,
                            .weight_decay_factor = 0.5F};
      bench.run(call);
      EXPECT_LE(normalised_error(bench.download(param), expected), 4 * 0x1p-24);
      EXPECT_EQ(bench.download(working), rounded(bench.download(param), DType::kBF16));
      const Values before = bench.download(param);
      MuonUpdate bad = call;
      bad.grad_scale = bench.upload({-1}, DType::kF32, {1});
      bench.run(bad);
      EXPECT_EQ(bench.download(param), before);
    }
  }
}

// A bad step leaves the momentum unchanged and sets the direction to zero, so that no NaN spreads.
TEST_P(MuonTest, ABadStepIsSkippedOnTheDevice) {
  OperatorBench bench(GetParam());
  const Tensor momentum = bench.upload({4, 5, 6}, DType::kF32, {3});
  const Tensor direction = bench.empty(DType::kF32, {3});
  bench.run(MuonMomentum{.grad = bench.upload({1, NAN, 2}, DType::kF32, {3}),
                         .momentum = momentum,
                         .direction = direction,
                         .grad_scale = bench.upload({-1}, DType::kF32, {1}),
                         .beta = 0.9F,
                         .nesterov = true});
  EXPECT_EQ(bench.download(momentum), (Values{4, 5, 6}));
  EXPECT_EQ(bench.download(direction), (Values{0, 0, 0}));
}

}  // namespace
}  // namespace primus::turbo::test
