#include "turbo/sgd/sgd.h"

#include "turbo/operator_test.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::test {
namespace {

constexpr double kRate = 1e-2, kDecay = 0.1;

class SgdTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, SgdTest, ::testing::ValuesIn(devices_under_test()));

// Compares with torch.optim.SGD in double, in which weight decay is part of the momentum.
TEST_P(SgdTest, TenStepsFollowTheReference) {
  OperatorBench bench(GetParam());
  const Tensor scalars = bench.upload({1, kRate, kDecay, 0, 0}, DType::kF64, {kStepScalars});
  for (const double momentum : {0.0, 0.875}) {
    for (const std::int64_t n : {1, 47, 20011}) {
      Values p = rounded(random_values(n, 1), DType::kF32), m(static_cast<std::size_t>(n));
      const Tensor param = bench.upload(p, DType::kF32, {n}), working = bench.empty(DType::kBF16, {n});
      const Tensor buffer = momentum == 0 ? Tensor() : bench.zeros(DType::kF32, {n});
      for (int step = 1; step <= 10; ++step) {
        const double scale = rounded(1.0 / step, DType::kF32);
        const Values grad = rounded(random_values(n, static_cast<std::uint64_t>(step), 0.3), DType::kF32);
        for (std::size_t i = 0; i < grad.size(); ++i) {
          m[i] = momentum * m[i] + grad[i] * scale + kDecay / 2 * p[i];
          p[i] -= kRate * m[i];
        }
        bench.run(SgdMomentum{.param = param,
                              .grad = bench.upload(grad, DType::kF32, {n}),
                              .momentum_buffer = buffer,
                              .grad_scale = bench.upload({scale}, DType::kF32, {1}),
                              .working = step % 2 == 0 ? working : Tensor(),
                              .scalars = scalars,
                              .momentum = static_cast<float>(momentum),
                              .weight_decay_factor = 0.5F});
      }
      EXPECT_LE(normalised_error(bench.download(param), p), 2e-6);
      if (momentum != 0) {
        EXPECT_LE(normalised_error(bench.download(buffer), m), 2e-6);
      }
      EXPECT_EQ(bench.download(working), rounded(bench.download(param), DType::kBF16));
    }
  }
}

TEST_P(SgdTest, Bf16GradientsAreReadDirectly) {
  OperatorBench bench(GetParam());
  for (const double momentum : {0.0, 0.875}) {
    for (const std::int64_t n : {47, 4096}) {
      const Values grad = rounded(random_values(n, 1), DType::kBF16);
      const auto update = [&](DType type) {
        const Tensor param = bench.upload(random_values(n, 2), DType::kF32, {n});
        const Tensor buffer = momentum == 0 ? Tensor() : bench.upload(random_values(n, 3), DType::kF32, {n});
        bench.run(SgdMomentum{.param = param,
                              .grad = bench.upload(grad, type, {n}),
                              .momentum_buffer = buffer,
                              .grad_scale = bench.upload({0.75}, DType::kF32, {1}),
                              .working = {},
                              .scalars = bench.upload({1, kRate, kDecay, 0, 0}, DType::kF64, {kStepScalars}),
                              .momentum = static_cast<float>(momentum)});
        return std::pair(bench.download(param), momentum == 0 ? Values() : bench.download(buffer));
      };
      EXPECT_EQ(update(DType::kBF16), update(DType::kF32)) << n;
    }
  }
}

TEST_P(SgdTest, ABadStepIsSkippedOnTheDevice) {
  OperatorBench bench(GetParam());
  const Tensor param = bench.upload({1, -2, 3}, DType::kF32, {3});
  const Tensor buffer = bench.upload({4, 5, 6}, DType::kF32, {3});
  const Tensor working = bench.upload({7, 8, 9}, DType::kBF16, {3});
  bench.run(SgdMomentum{.param = param,
                        .grad = bench.upload({1, NAN, 2}, DType::kF32, {3}),
                        .momentum_buffer = buffer,
                        .grad_scale = bench.upload({-1}, DType::kF32, {1}),
                        .working = working,
                        .scalars = bench.upload({1, kRate, kDecay, 0, 0}, DType::kF64, {kStepScalars}),
                        .momentum = 0.9F});
  EXPECT_EQ(bench.download(param), (Values{1, -2, 3}));
  EXPECT_EQ(bench.download(buffer), (Values{4, 5, 6}));
  EXPECT_EQ(bench.download(working), (Values{7, 8, 9}));
}

}  // namespace
}  // namespace primus::turbo::test
