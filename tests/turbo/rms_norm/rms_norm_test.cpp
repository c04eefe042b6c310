#include "turbo/rms_norm/rms_norm.h"

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

constexpr float kEps = 1e-5F;

struct Case {
  std::int64_t tokens, hidden;
  DType dtype;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    // With 1 column the gradient would be 0, because the result is the sign of x.
    all.push_back({1, 3, dtype});
    all.push_back({1, 48, dtype});
    all.push_back({7, 129, dtype});
    all.push_back({300, 96, dtype});
    all.push_back({37, 896, dtype});  // bf16 rows that fit into the registers of a warp
    all.push_back({3, 2048, dtype});
  }
  return all;
}

// Returns y and rstd of x in double.
Values reference_forward(const Values& x, const Values& weight, std::int64_t tokens,
                         Values* rstd_out = nullptr) {
  const std::size_t hidden = weight.size();
  Values y(x.size());
  for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t) {
    double squares = 0;
    for (std::size_t i = 0; i < hidden; ++i) squares += x[t * hidden + i] * x[t * hidden + i];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(hidden) + kEps);
    for (std::size_t i = 0; i < hidden; ++i) y[t * hidden + i] = x[t * hidden + i] * rstd * weight[i];
    if (rstd_out) rstd_out->push_back(rstd);
  }
  return y;
}

struct Gradients {
  Values d_x, d_weight;
};
Gradients reference_backward(const Values& x, const Values& weight, const Values& d_y, std::int64_t tokens) {
  const std::size_t hidden = weight.size();
  Values rstd;
  reference_forward(x, weight, tokens, &rstd);
  Gradients out{Values(x.size()), Values(hidden)};
  for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t) {
    double along = 0;
    for (std::size_t i = 0, at = t * hidden; i < hidden; ++i, ++at) along += d_y[at] * weight[i] * x[at];
    along *= rstd[t] * rstd[t] * rstd[t] / static_cast<double>(hidden);
    for (std::size_t i = 0, at = t * hidden; i < hidden; ++i, ++at) {
      out.d_x[at] = d_y[at] * weight[i] * rstd[t] - x[at] * along;
      out.d_weight[i] += d_y[at] * x[at] * rstd[t];
    }
  }
  return out;
}

TEST(RmsNormReference, GradientsAgreeWithFiniteDifferences) {
  const std::int64_t tokens = 3, hidden = 5;
  const Values x = random_values(tokens * hidden, 1), weight = random_values(hidden, 2);
  const Values d_y = random_values(tokens * hidden, 3);
  const Gradients gradients = reference_backward(x, weight, d_y, tokens);
  const auto by_x = [&](const Values& v) { return dot(reference_forward(v, weight, tokens), d_y); };
  const auto by_weight = [&](const Values& v) { return dot(reference_forward(x, v, tokens), d_y); };
  EXPECT_LE(normalised_error(gradients.d_x, numeric_gradient(by_x, x)), 1e-8);
  EXPECT_LE(normalised_error(gradients.d_weight, numeric_gradient(by_weight, weight)), 1e-8);
}

class RmsNormTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, RmsNormTest, ::testing::ValuesIn(devices_under_test()));

TEST_P(RmsNormTest, Forward) {
  OperatorBench bench(GetParam());
  for (const auto& [tokens, hidden, dtype] : cases()) {
    const Values x = rounded(random_values(tokens * hidden, 1, 3.0), dtype);
    const Values weight = rounded(random_values(hidden, 2), dtype);
    Values rstd;
    const Values expected = reference_forward(x, weight, tokens, &rstd);
    const Tensor y = bench.empty(dtype, {tokens, hidden}), r = bench.empty(DType::kF32, {tokens});
    bench.run(RmsNormForward{.x = bench.upload(x, dtype, {tokens, hidden}),
                             .delta = {},
                             .weight = bench.upload(weight, dtype, {hidden}),
                             .sum = {},
                             .y = y,
                             .rstd = r,
                             .eps = kEps});
    EXPECT_LE(normalised_error(bench.download(y), expected), rounding_error(dtype) + 4e-7)
        << tokens << 'x' << hidden;
    EXPECT_LE(normalised_error(bench.download(r), rstd), 4e-7);
  }
}

TEST_P(RmsNormTest, ForwardWithResidual) {
  OperatorBench bench(GetParam());
  for (const auto& [tokens, hidden, dtype] : cases()) {
    const Values x = rounded(random_values(tokens * hidden, 1, 3.0), dtype);
    const Values delta = rounded(random_values(tokens * hidden, 4), dtype);
    const Values weight = rounded(random_values(hidden, 2), dtype);
    Values sum(x.size());
    // The norm is computed from the stored, rounded sum.
    for (std::size_t i = 0; i < x.size(); ++i) sum[i] = rounded(x[i] + delta[i], dtype);
    const Values expected = reference_forward(sum, weight, tokens);
    const Shape shape{tokens, hidden};
    for (const bool in_place : {false, true}) {
      const Tensor x_device = bench.upload(x, dtype, shape);
      const Tensor sum_device = in_place ? x_device : bench.empty(dtype, shape);
      const Tensor y = bench.empty(dtype, shape);
      bench.run(RmsNormForward{.x = x_device,
                               .delta = bench.upload(delta, dtype, shape),
                               .weight = bench.upload(weight, dtype, {hidden}),
                               .sum = sum_device,
                               .y = y,
                               .rstd = bench.empty(DType::kF32, {tokens}),
                               .eps = kEps});
      EXPECT_EQ(bench.download(sum_device), sum);
      EXPECT_LE(normalised_error(bench.download(y), expected), rounding_error(dtype) + 4e-7);
    }
  }
}

// Storing weights minus one does not change results. Tests rows that fit into the registers of a warp, and
// longer rows.
TEST_P(RmsNormTest, WeightsMayBeStoredMinusOne) {
  OperatorBench bench(GetParam());
  for (const auto& [tokens, hidden, dtype] : cases()) {
    const Shape shape{tokens, hidden};
    const Values x = rounded(random_values(tokens * hidden, 1, 3.0), dtype),
                 d_y = rounded(random_values(tokens * hidden, 5), dtype),
                 stored = rounded(random_values(hidden, 2, 0.1), dtype);
    Values weight = stored, rstd;
    for (double& w : weight) w += 1;
    const Values expected = reference_forward(x, weight, tokens, &rstd);
    const Tensor on_x = bench.upload(x, dtype, shape), on_weight = bench.upload(stored, dtype, {hidden}),
                 y = bench.empty(dtype, shape), r = bench.empty(DType::kF32, {tokens});
    bench.run(RmsNormForward{
        .x = on_x, .delta = {}, .weight = on_weight, .sum = {}, .y = y, .rstd = r, .eps = kEps, .offset = 1});
    EXPECT_LE(normalised_error(bench.download(y), expected), rounding_error(dtype) + 4e-7);
    RmsNormBackwardInput input{.x = on_x,
                               .weight = on_weight,
                               .rstd = bench.upload(rstd, DType::kF32, {tokens}),
                               .d_y = bench.upload(d_y, dtype, shape),
                               .d_sum = {},
                               .d_x = y};
    input.offset = 1;
    bench.run(input);
    EXPECT_LE(normalised_error(bench.download(y), reference_backward(x, weight, d_y, tokens).d_x),
              rounding_error(dtype) + 1e-6);
  }
}

TEST_P(RmsNormTest, Backward) {
  OperatorBench bench(GetParam());
  for (const auto& [tokens, hidden, dtype] : cases()) {
    const Shape shape{tokens, hidden};
    const Values x = rounded(random_values(tokens * hidden, 1, 3.0), dtype);
    const Values weight = rounded(random_values(hidden, 2), dtype);
    const Values d_y = rounded(random_values(tokens * hidden, 5), dtype);
    const Values d_sum = rounded(random_values(tokens * hidden, 6), dtype);
    Values rstd;
    reference_forward(x, weight, tokens, &rstd);
    const Gradients expected = reference_backward(x, weight, d_y, tokens);
    const Tensor x_device = bench.upload(x, dtype, shape), d_y_device = bench.upload(d_y, dtype, shape);
    const Tensor weight_device = bench.upload(weight, dtype, {hidden});
    const Tensor rstd_device = bench.upload(rstd, DType::kF32, {tokens});

    const Tensor d_x = bench.empty(dtype, shape);
    RmsNormBackwardInput input{.x = x_device,
                               .weight = weight_device,
                               .rstd = rstd_device,
                               .d_y = d_y_device,
                               .d_sum = {},
                               .d_x = d_x};
    bench.run(input);
    EXPECT_LE(normalised_error(bench.download(d_x), expected.d_x), rounding_error(dtype) + 1e-6);

    Values with_residual = expected.d_x;
    for (std::size_t i = 0; i < d_sum.size(); ++i) with_residual[i] += d_sum[i];
    for (const int in_place : {0, 1, 2}) {  // 0: d_x has its own memory; 1: d_x is d_sum; 2: d_x is d_y
      input.d_sum = bench.upload(d_sum, dtype, shape);
      input.d_y = bench.upload(d_y, dtype, shape);
      input.d_x = in_place == 0 ? d_x : in_place == 1 ? input.d_sum : input.d_y;
      bench.run(input);
      EXPECT_LE(normalised_error(bench.download(input.d_x), with_residual), rounding_error(dtype) + 1e-6);
    }

    // Computes both gradients in one call, also with d_x in the memory of d_y.
    for (const bool in_place : {false, true}) {
      const Values before = random_values(hidden, 7);
      RmsNormBackwardInput both = input;
      both.d_sum = {};
      both.d_y = bench.upload(d_y, dtype, shape);
      both.d_x = in_place ? both.d_y : d_x;
      both.d_weight = bench.upload(before, DType::kF32, {hidden});
      both.accumulate = in_place;
      bench.run(both);
      EXPECT_LE(normalised_error(bench.download(both.d_x), expected.d_x), rounding_error(dtype) + 1e-6);
      Values sum = expected.d_weight;
      for (std::size_t i = 0; in_place && i < sum.size(); ++i) sum[i] += before[i];
      EXPECT_LE(normalised_error(bench.download(both.d_weight), sum), 2e-6);
    }

    const Tensor d_weight = bench.empty(DType::kF32, {hidden});
    RmsNormBackwardWeight gradient{.x = x_device,
                                   .rstd = rstd_device,
                                   .d_y = d_y_device,
                                   .d_weight = d_weight,
                                   .accumulate = false,
                                   .workspace = {}};
    bench.run(gradient);
    EXPECT_LE(normalised_error(bench.download(d_weight), expected.d_weight), 2e-6);
    gradient.accumulate = true;
    bench.run(gradient);
    Values twice = expected.d_weight;
    for (double& value : twice) value *= 2;
    EXPECT_LE(normalised_error(bench.download(d_weight), twice), 2e-6);

    // A bf16 weight gradient is rounded once, even if it accumulates.
    gradient.accumulate = false;
    gradient.d_weight = bench.empty(DType::kBF16, {hidden});
    bench.run(gradient);
    EXPECT_LE(normalised_error(bench.download(gradient.d_weight), expected.d_weight),
              rounding_error(DType::kBF16) + 2e-6);
    const Values before = rounded(random_values(hidden, 9, 100.0), DType::kBF16);
    gradient.accumulate = true;
    gradient.d_weight = bench.upload(before, DType::kBF16, {hidden});
    bench.run(gradient);
    Values added = before;
    for (std::size_t i = 0; i < added.size(); ++i) added[i] += expected.d_weight[i];
    EXPECT_LE(normalised_error(bench.download(gradient.d_weight), added),
              rounding_error(DType::kBF16) + 2e-6);
  }
}

TEST(RmsNorm, NoThreadCountChangesABit) {
  const std::int64_t tokens = 1500, hidden = 200;
  const Values x = random_values(tokens * hidden, 1), d_y = random_values(tokens * hidden, 2);
  const Values weight = random_values(hidden, 3);
  const Shape shape{tokens, hidden};
  std::vector<std::vector<unsigned char>> first;
  for (const int threads : {1, 2, 3, 7}) {
    OperatorBench bench({.threads = threads});
    const Tensor x_device = bench.upload(x, DType::kF32, shape),
                 d_y_device = bench.upload(d_y, DType::kF32, shape);
    const Tensor weight_device = bench.upload(weight, DType::kF32, {hidden});
    const Tensor y = bench.empty(DType::kF32, shape), rstd = bench.empty(DType::kF32, {tokens});
    const Tensor d_x = bench.empty(DType::kF32, shape), d_weight = bench.empty(DType::kF32, {hidden});
    bench.run(RmsNormForward{
        .x = x_device, .delta = {}, .weight = weight_device, .sum = {}, .y = y, .rstd = rstd, .eps = kEps});
    bench.run(RmsNormBackwardInput{
        .x = x_device, .weight = weight_device, .rstd = rstd, .d_y = d_y_device, .d_sum = {}, .d_x = d_x});
    bench.run(RmsNormBackwardWeight{.x = x_device,
                                    .rstd = rstd,
                                    .d_y = d_y_device,
                                    .d_weight = d_weight,
                                    .accumulate = false,
                                    .workspace = {}});
    std::vector<std::vector<unsigned char>> bits = {bench.bytes(y), bench.bytes(rstd), bench.bytes(d_x),
                                                    bench.bytes(d_weight)};
    if (first.empty()) first = bits;
    EXPECT_EQ(bits, first) << threads << " threads";
  }
}

}  // namespace
}  // namespace primus::turbo::test
