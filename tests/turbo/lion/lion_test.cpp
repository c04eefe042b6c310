#include "turbo/lion/lion.h"

#include "turbo/operator_test.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::test {
namespace {

constexpr double kRate = 1e-2, kDecay = 0.125, kBeta1 = 0.875,
                 kBeta2 = 0.96875;  // all but kRate are exact in fp32

class LionTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, LionTest, ::testing::ValuesIn(devices_under_test()));

struct State {
  Tensor param, exp_avg, working, scalars;
};

void run(OperatorBench& bench, const State& s, const Values& grad, double scale, bool working,
         DType type = DType::kF32) {
  bench.run(Lion{.param = s.param,
                 .grad = bench.upload(grad, type, s.param.shape),
                 .exp_avg = s.exp_avg,
                 .grad_scale = bench.upload({scale}, DType::kF32, {1}),
                 .working = working ? s.working : Tensor(),
                 .scalars = s.scalars,
                 .beta1 = static_cast<float>(kBeta1),
                 .beta2 = static_cast<float>(kBeta2),
                 .weight_decay_factor = 0.5F});
}

// Compares with Lion in double. The means of moment and gradient are so far from 0 that rounding cannot
// change a sign.
TEST_P(LionTest, TenStepsFollowTheReference) {
  OperatorBench bench(GetParam());
  for (const std::int64_t n : {1, 47, 20011}) {
    Values p = rounded(random_values(n, 1), DType::kF32), m(static_cast<std::size_t>(n));
    const State state{bench.upload(p, DType::kF32, {n}), bench.zeros(DType::kF32, {n}),
                      bench.empty(DType::kBF16, {n}),
                      bench.upload({1, kRate, kDecay, 0, 0}, DType::kF64, {kStepScalars})};
    int near_zero = 0;
    for (int step = 1; step <= 10; ++step) {
      const double scale = rounded(1.0 / step, DType::kF32);
      const Values grad = rounded(random_values(n, static_cast<std::uint64_t>(step), 0.3), DType::kF32);
      for (std::size_t i = 0; i < grad.size(); ++i) {
        const double g = grad[i] * scale, mixed = kBeta1 * m[i] + (1 - kBeta1) * g;
        near_zero += std::abs(mixed) < 1e-8 ? 1 : 0;
        p[i] = p[i] * (1 - kRate * kDecay / 2) - kRate * (mixed > 0 ? 1 : -1);
        m[i] = kBeta2 * m[i] + (1 - kBeta2) * g;
      }
      run(bench, state, grad, scale, step % 2 == 0);
    }
    ASSERT_EQ(near_zero, 0);
    EXPECT_LE(normalised_error(bench.download(state.param), p), 2e-6);
    EXPECT_LE(normalised_error(bench.download(state.exp_avg), m), 2e-6);
    EXPECT_EQ(bench.download(state.working), rounded(bench.download(state.param), DType::kBF16));
  }
}

TEST_P(LionTest, Bf16GradientsAreReadDirectly) {
  OperatorBench bench(GetParam());
  for (const std::int64_t n : {47, 4096}) {
    const Values grad = rounded(random_values(n, 1), DType::kBF16);
    const auto update = [&](DType type) {
      const State state{bench.upload(random_values(n, 2), DType::kF32, {n}),
                        bench.upload(random_values(n, 3), DType::kF32, {n}), bench.empty(DType::kBF16, {n}),
                        bench.upload({1, kRate, kDecay, 0, 0}, DType::kF64, {kStepScalars})};
      run(bench, state, grad, 0.75, true, type);
      return std::tuple(bench.download(state.param), bench.download(state.exp_avg),
                        bench.download(state.working));
    };
    EXPECT_EQ(update(DType::kBF16), update(DType::kF32)) << n;
  }
}

// If gradient and moment are zero, a step only decays the weights. A bad step is skipped.
TEST_P(LionTest, ZeroGradientsOnlyDecayWeightsAndABadStepIsSkipped) {
  OperatorBench bench(GetParam());
  const State state{bench.upload({1, -2, 4}, DType::kF32, {3}), bench.zeros(DType::kF32, {3}),
                    bench.upload({7, 8, 9}, DType::kBF16, {3}),
                    bench.upload({1, 0.5, 1, 0, 0}, DType::kF64, {kStepScalars})};
  run(bench, state, {0, 0, 0}, 1, false);
  EXPECT_EQ(bench.download(state.param), (Values{0.75, -1.5, 3}));
  run(bench, state, {1, NAN, 2}, -1, true);
  EXPECT_EQ(bench.download(state.param), (Values{0.75, -1.5, 3}));
  EXPECT_EQ(bench.download(state.exp_avg), (Values{0, 0, 0}));
  EXPECT_EQ(bench.download(state.working), (Values{7, 8, 9}));
}

}  // namespace
}  // namespace primus::turbo::test
