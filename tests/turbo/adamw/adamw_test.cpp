#include "turbo/adamw/adamw.h"

#include "turbo/operator_test.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::test {
namespace {

struct State {
  Values param, exp_avg, exp_avg_sq;
};

struct Settings {
  double lr = 1e-2, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
};

// Applies one step of torch.optim.AdamW in double.
void reference_step(State& s, const Values& grad, double scale, const Settings& set, int step) {
  const double bias1 = 1 - std::pow(set.beta1, step), bias2 = 1 - std::pow(set.beta2, step);
  for (std::size_t i = 0; i < grad.size(); ++i) {
    const double g = grad[i] * scale;
    s.param[i] *= 1 - set.lr * set.weight_decay;
    s.exp_avg[i] = set.beta1 * s.exp_avg[i] + (1 - set.beta1) * g;
    s.exp_avg_sq[i] = set.beta2 * s.exp_avg_sq[i] + (1 - set.beta2) * g * g;
    const double denominator = std::sqrt(s.exp_avg_sq[i]) / std::sqrt(bias2) + set.eps;
    s.param[i] -= set.lr / bias1 * s.exp_avg[i] / denominator;
  }
}

Tensor upload_scalars(OperatorBench& bench, const Settings& set, double bias1, double bias2) {
  return bench.upload({1, set.lr, set.weight_decay, bias1, bias2}, DType::kF64, {kStepScalars});
}

class AdamWTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, AdamWTest, ::testing::ValuesIn(devices_under_test()));

TEST_P(AdamWTest, TenStepsFollowTheReference) {
  OperatorBench bench(GetParam());
  const Settings set;
  for (const std::int64_t n : {1, 47, 20011}) {
    State state{rounded(random_values(n, 1), DType::kF32), Values(static_cast<std::size_t>(n)),
                Values(static_cast<std::size_t>(n))};
    const Tensor param = bench.upload(state.param, DType::kF32, {n});
    const Tensor exp_avg = bench.zeros(DType::kF32, {n}), exp_avg_sq = bench.zeros(DType::kF32, {n});
    const Tensor working = bench.empty(DType::kBF16, {n});
    for (int step = 1; step <= 10; ++step) {
      const double scale = rounded(1.0 / step, DType::kF32);
      const Values grad = rounded(random_values(n, static_cast<std::uint64_t>(step), 0.3), DType::kF32);
      reference_step(state, grad, scale, set, step);
      bench.run(AdamW{
          .param = param,
          .grad = bench.upload(grad, DType::kF32, {n}),
          .exp_avg = exp_avg,
          .exp_avg_sq = exp_avg_sq,
          .grad_scale = bench.upload({scale}, DType::kF32, {1}),
          .working = step % 2 == 0 ? working : Tensor(),
          .scalars = upload_scalars(bench, set, 1 - std::pow(set.beta1, step), 1 - std::pow(set.beta2, step)),
          .beta1 = static_cast<float>(set.beta1),
          .beta2 = static_cast<float>(set.beta2),
          .eps = static_cast<float>(set.eps)});
    }
    EXPECT_LE(normalised_error(bench.download(param), state.param), 2e-6);
    EXPECT_LE(normalised_error(bench.download(exp_avg), state.exp_avg), 2e-6);
    EXPECT_LE(normalised_error(bench.download(exp_avg_sq), state.exp_avg_sq), 2e-6);
    EXPECT_EQ(bench.download(working), rounded(bench.download(param), DType::kBF16));
  }
}

// The moments and parameters after one step. The step starts from fixed moments, which are stored in bf16 or
// fp32.
struct Moments {
  Values first, second, param;
};
Moments step_with(OperatorBench& bench, std::int64_t n, DType first, DType second, std::uint64_t stream,
                  std::int64_t element, int step) {
  const Settings set;
  const Tensor param = bench.upload(rounded(random_values(n, 1), DType::kF32), DType::kF32, {n});
  const Tensor exp_avg = bench.upload(rounded(random_values(n, 2), DType::kBF16), first, {n});
  Values squares = random_values(n, 3);
  for (double& value : squares) value *= value;
  const Tensor exp_avg_sq = bench.upload(rounded(squares, DType::kBF16), second, {n});
  Tensor scalars = bench.upload({static_cast<double>(step), set.lr, set.weight_decay, 0.5, 0.4}, DType::kF64,
                                {kStepScalars});
  bench.run(AdamW{.param = param,
                  .grad = bench.upload(rounded(random_values(n, 4), DType::kF32), DType::kF32, {n}),
                  .exp_avg = exp_avg,
                  .exp_avg_sq = exp_avg_sq,
                  .grad_scale = bench.upload({1}, DType::kF32, {1}),
                  .working = {},
                  .scalars = scalars,
                  .beta1 = 0.9F,
                  .beta2 = 0.999F,
                  .eps = 1e-8F,
                  .rounding_stream = stream,
                  .first_element = element});
  return {bench.download(exp_avg), bench.download(exp_avg_sq), bench.download(param)};
}

// Stochastic rounding returns one of the two bf16 numbers around the exact moment. The rounding is unbiased:
// the mean error of n roundings is within 5 standard deviations. The standard deviation of one rounding is at
// most half a spacing.
TEST_P(AdamWTest, Bf16MomentsAreRoundedStochasticallyAndKeepTheirMean) {
  OperatorBench bench(GetParam());
  constexpr std::int64_t kCount = 20011;
  const Moments exact = step_with(bench, kCount, DType::kF32, DType::kF32, 0, 0, 3);
  const Moments stored = step_with(bench, kCount, DType::kBF16, DType::kBF16, 77, 5, 3);
  EXPECT_EQ(stored.param, exact.param) << "the update must use the moments before rounding";
  for (const auto& [rounded_values, values] :
       {std::pair(&stored.first, &exact.first), std::pair(&stored.second, &exact.second)}) {
    double bias = 0, variance = 0;
    int nearest = 0;
    for (std::size_t i = 0; i < values->size(); ++i) {
      const double value = (*values)[i], error = (*rounded_values)[i] - value;
      const double spacing = value == 0 ? 0 : std::exp2(std::ilogb(value) - 7);
      ASSERT_LE(std::abs(error), spacing) << i;
      // Errors are in units of the spacing of bf16 numbers. The probability of rounding up is the distance to
      // the lower number in these units.
      if (spacing == 0) continue;
      bias += error / spacing;
      const double part = std::abs(std::fmod(value, spacing)) / spacing;
      variance += part * (1 - part);
      nearest += std::abs(error) <= spacing / 2;
    }
    EXPECT_LE(std::abs(bias), 5 * std::sqrt(variance));
    EXPECT_LT(nearest, 0.9 * kCount) << "rounding is to nearest instead of stochastic";
  }
}

// The random bits do not depend on the device. They are different if the step, the stream or the element is
// different.
TEST_P(AdamWTest, StochasticRoundingDependsOnlyOnStreamStepAndElement) {
  OperatorBench bench(GetParam());
  OperatorBench first_device(devices_under_test().front());
  const auto run = [&](OperatorBench& on, std::uint64_t stream, std::int64_t element, int step) {
    return step_with(on, 4099, DType::kF32, DType::kBF16, stream, element, step).second;
  };
  const std::int64_t far = (std::int64_t{1} << 32) - 2000;  // element indices around 2^32
  const Values one = run(bench, 1, far, 1);
  EXPECT_EQ(one, run(first_device, 1, far, 1));
  EXPECT_EQ(one, run(bench, 1, far, 1));
  EXPECT_NE(one, run(bench, 2, far, 1));
  EXPECT_NE(one, run(bench, 1, far + 1, 1));
  EXPECT_NE(one, run(bench, 1, far, 2));
}

// With stochastic rounding, a bf16 second moment that changes by 0.1 % per step converges. With rounding to
// nearest, it would not converge.
TEST_P(AdamWTest, SlowSecondMomentsInBf16KeepChanging) {
  OperatorBench bench(GetParam());
  constexpr std::int64_t kCount = 4096;
  const Values ones(kCount, 1.0);
  const Tensor exp_avg_sq = bench.zeros(DType::kBF16, {kCount});
  for (int step = 1; step <= 400; ++step) {
    bench.run(
        AdamW{.param = bench.zeros(DType::kF32, {kCount}),
              .grad = bench.upload(ones, DType::kF32, {kCount}),
              .exp_avg = bench.zeros(DType::kF32, {kCount}),
              .exp_avg_sq = exp_avg_sq,
              .grad_scale = bench.upload({1}, DType::kF32, {1}),
              .working = {},
              .scalars = bench.upload({static_cast<double>(step), 0, 0, 1, 1}, DType::kF64, {kStepScalars}),
              .beta1 = 0.9F,
              .beta2 = 0.999F,
              .eps = 1e-8F});
  }
  double mean = 0;
  for (const double value : bench.download(exp_avg_sq)) mean += value / kCount;
  // 1 - 0.999^400 = 0.330. With rounding to nearest, the mean would stay below 0.25, because there a step
  // changes the moment by less than half a spacing (0.001).
  EXPECT_NEAR(mean, 1 - std::pow(0.999, 400), 0.003);
}

// A bf16 gradient gives the same bits as an equal fp32 gradient.
TEST_P(AdamWTest, Bf16GradientsAreReadDirectly) {
  OperatorBench bench(GetParam());
  for (const std::int64_t n : {47, 4096}) {
    const Values grad = rounded(random_values(n, 1, 0.3), DType::kBF16);
    const auto update = [&](DType type, DType first, DType second, bool working) {
      const Tensor param = bench.upload(random_values(n, 2), DType::kF32, {n});
      const Tensor exp_avg = bench.upload(random_values(n, 3), first, {n});
      const Tensor exp_avg_sq = bench.upload(Values(static_cast<std::size_t>(n), 0.25), second, {n});
      const Tensor values = working ? bench.zeros(DType::kBF16, {n}) : Tensor();
      const Tensor g = bench.upload(grad, type, {n}), sum = bench.empty(DType::kF64, {1});
      bench.run(SumOfSquares{.x = g, .out = sum, .accumulate = false});
      bench.run(AdamW{.param = param,
                      .grad = g,
                      .exp_avg = exp_avg,
                      .exp_avg_sq = exp_avg_sq,
                      .grad_scale = bench.upload({0.75}, DType::kF32, {1}),
                      .working = values,
                      .scalars = upload_scalars(bench, {}, 0.5, 0.4),
                      .beta1 = 0.9F,
                      .beta2 = 0.95F,
                      .eps = 1e-8F,
                      .rounding_stream = 5});
      std::vector<std::vector<unsigned char>> bits = {bench.bytes(param), bench.bytes(exp_avg),
                                                      bench.bytes(exp_avg_sq), bench.bytes(sum)};
      if (working) bits.push_back(bench.bytes(values));
      return bits;
    };
    for (const DType first : {DType::kF32, DType::kBF16}) {
      for (const DType second : {DType::kF32, DType::kBF16}) {
        for (const bool working : {false, true}) {
          EXPECT_EQ(update(DType::kBF16, first, second, working), update(DType::kF32, first, second, working))
              << n;
        }
      }
    }
  }
}

TEST_P(AdamWTest, ZeroGradientsOnlyDecayWeights) {
  OperatorBench bench(GetParam());
  const Tensor param = bench.upload({1, -2, 3}, DType::kF32, {3});
  bench.run(AdamW{.param = param,
                  .grad = bench.zeros(DType::kF32, {3}),
                  .exp_avg = bench.zeros(DType::kF32, {3}),
                  .exp_avg_sq = bench.zeros(DType::kF32, {3}),
                  .grad_scale = bench.upload({1}, DType::kF32, {1}),
                  .working = {},
                  .scalars = upload_scalars(bench, {.lr = 0.5, .weight_decay = 0.5}, 0.1, 0.05),
                  .beta1 = 0.9F,
                  .beta2 = 0.95F,
                  .eps = 1e-8F});
  EXPECT_EQ(bench.download(param), (Values{0.75, -1.5, 2.25}));
}

TEST_P(AdamWTest, GroupFactorsMultiplyRateAndDecay) {
  OperatorBench bench(GetParam());
  const auto step = [&](const Settings& set, float rate_factor, float decay_factor) {
    const Tensor param = bench.upload({1, -2, 3}, DType::kF32, {3});
    bench.run(AdamW{.param = param,
                    .grad = bench.upload({0.5, 0.25, -1}, DType::kF32, {3}),
                    .exp_avg = bench.zeros(DType::kF32, {3}),
                    .exp_avg_sq = bench.zeros(DType::kF32, {3}),
                    .grad_scale = bench.upload({1}, DType::kF32, {1}),
                    .working = {},
                    .scalars = upload_scalars(bench, set, 0.1, 0.05),
                    .beta1 = 0.9F,
                    .beta2 = 0.95F,
                    .eps = 1e-8F,
                    .learning_rate_factor = rate_factor,
                    .weight_decay_factor = decay_factor});
    return bench.download(param);
  };
  EXPECT_EQ(step({.lr = 0.25, .weight_decay = 0.5}, 2, 0.5F), step({.lr = 0.5, .weight_decay = 0.25}, 1, 1));
}

// If the norm of the gradient is NaN or infinite, the step changes neither weights nor moments, not even by
// weight decay.
TEST_P(AdamWTest, ABadStepIsSkippedOnTheDevice) {
  OperatorBench bench(GetParam());
  for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    const Tensor grad = bench.upload({1, bad, 2}, DType::kF32, {3});
    const Tensor sum = bench.empty(DType::kF64, {1}), norm = bench.empty(DType::kF32, {1});
    const Tensor scale = bench.empty(DType::kF32, {1});
    const Tensor param = bench.upload({1, -2, 3}, DType::kF32, {3});
    const Tensor exp_avg = bench.upload({4, 5, 6}, DType::kF32, {3});
    const Tensor exp_avg_sq = bench.upload({7, 8, 9}, DType::kF32, {3});
    const Tensor working = bench.upload({1, -2, 3}, DType::kBF16, {3});
    bench.run(SumOfSquares{.x = grad, .out = sum, .accumulate = false});
    bench.run(ClipCoefficient{.sum_of_squares = sum, .norm = norm, .scale = scale, .max_norm = 1.0F});
    bench.run(AdamW{.param = param,
                    .grad = grad,
                    .exp_avg = exp_avg,
                    .exp_avg_sq = exp_avg_sq,
                    .grad_scale = scale,
                    .working = working,
                    .scalars = upload_scalars(bench, {}, 0.1, 0.05),
                    .beta1 = 0.9F,
                    .beta2 = 0.95F,
                    .eps = 1e-8F});
    EXPECT_EQ(bench.download(param), (Values{1, -2, 3}));
    EXPECT_EQ(bench.download(exp_avg), (Values{4, 5, 6}));
    EXPECT_EQ(bench.download(exp_avg_sq), (Values{7, 8, 9}));
    EXPECT_EQ(bench.download(working), (Values{1, -2, 3}));
  }
}

TEST_P(AdamWTest, SumOfSquaresIsComputedInDouble) {
  OperatorBench bench(GetParam());
  for (const std::int64_t n : {1, 33, 100003}) {
    const Values x = rounded(random_values(n, 1), DType::kF32);
    const double expected = dot(x, x);
    const Tensor out = bench.empty(DType::kF64, {1});
    const Tensor x_device = bench.upload(x, DType::kF32, {n});
    bench.run(SumOfSquares{.x = x_device, .out = out, .accumulate = false});
    EXPECT_NEAR(bench.download(out)[0], expected, 1e-12 * expected);
    bench.run(SumOfSquares{.x = x_device, .out = out, .accumulate = true});
    EXPECT_NEAR(bench.download(out)[0], 2 * expected, 1e-12 * expected);
  }
  // The squares exceed the range of float.
  const Tensor out = bench.zeros(DType::kF64, {1});
  bench.run(SumOfSquares{.x = bench.upload({1e25, 1e25}, DType::kF32, {2}), .out = out, .accumulate = false});
  EXPECT_NEAR(bench.download(out)[0], 2e50, 1e44);
}

TEST_P(AdamWTest, ClipCoefficient) {
  OperatorBench bench(GetParam());
  const auto clip = [&](double sum, float max_norm) {
    const Tensor norm = bench.empty(DType::kF32, {1}), scale = bench.empty(DType::kF32, {1});
    bench.run(ClipCoefficient{.sum_of_squares = bench.upload({sum}, DType::kF64, {1}),
                              .norm = norm,
                              .scale = scale,
                              .max_norm = max_norm});
    return std::pair{bench.download(norm)[0], bench.download(scale)[0]};
  };
  EXPECT_EQ(clip(16.0, 8.0F), (std::pair{4.0, 1.0}));
  EXPECT_EQ(clip(16.0, 0.0F), (std::pair{4.0, 1.0}));
  EXPECT_EQ(clip(16.0, 1.0F).second, static_cast<float>(1 / (4 + 1e-6)));
  EXPECT_EQ(clip(0.0, 1.0F), (std::pair{0.0, 1.0}));
  EXPECT_EQ(clip(NAN, 1.0F).second, -1.0);
  EXPECT_EQ(clip(INFINITY, 1.0F).second, -1.0);
  EXPECT_EQ(clip(NAN, 0.0F).second, -1.0);
}

TEST(AdamW, NoThreadCountChangesABit) {
  const std::int64_t n = 200003;
  const Values param = random_values(n, 1), grad = random_values(n, 2);
  std::vector<std::vector<unsigned char>> first;
  for (const int threads : {1, 2, 5}) {
    OperatorBench bench({.threads = threads});
    const Tensor param_device = bench.upload(param, DType::kF32, {n});
    const Tensor grad_device = bench.upload(grad, DType::kF32, {n});
    const Tensor exp_avg = bench.zeros(DType::kF32, {n}), exp_avg_sq = bench.zeros(DType::kF32, {n});
    const Tensor sum = bench.empty(DType::kF64, {1}), norm = bench.empty(DType::kF32, {1});
    const Tensor scale = bench.empty(DType::kF32, {1});
    bench.run(SumOfSquares{.x = grad_device, .out = sum, .accumulate = false});
    bench.run(ClipCoefficient{.sum_of_squares = sum, .norm = norm, .scale = scale, .max_norm = 1.0F});
    bench.run(AdamW{.param = param_device,
                    .grad = grad_device,
                    .exp_avg = exp_avg,
                    .exp_avg_sq = exp_avg_sq,
                    .grad_scale = scale,
                    .working = {},
                    .scalars = upload_scalars(bench, {.lr = 1e-3}, 0.1, 0.05),
                    .beta1 = 0.9F,
                    .beta2 = 0.95F,
                    .eps = 1e-8F});
    std::vector<std::vector<unsigned char>> bits = {bench.bytes(sum), bench.bytes(param_device),
                                                    bench.bytes(exp_avg), bench.bytes(exp_avg_sq)};
    if (first.empty()) first = bits;
    EXPECT_EQ(bits, first) << threads << " threads";
  }
}

}  // namespace
}  // namespace primus::turbo::test
