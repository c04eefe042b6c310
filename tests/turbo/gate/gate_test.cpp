#include "turbo/gate/gate.h"

#include <cmath>

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

class GateTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, GateTest, ::testing::ValuesIn(devices_under_test()));

TEST_P(GateTest, GatesApplyToColumnsOrRows) {
  OperatorBench bench(GetParam());
  struct Case {
    std::int64_t rows, n;
    bool of_rows;
    DType dtype, gate;
  };
  for (const Case& c :
       {Case{3, 5, false, DType::kF32, DType::kF32}, Case{70, 264, false, DType::kBF16, DType::kBF16},
        Case{1, 1, true, DType::kF32, DType::kF32}, Case{67, 130, true, DType::kBF16, DType::kBF16},
        Case{9, 64, true, DType::kBF16, DType::kF32}}) {
    const std::int64_t gates = c.of_rows ? 1 : c.n;
    const Values x = rounded(random_values(c.rows * c.n, 1), c.dtype),
                 d_y = rounded(random_values(c.rows * c.n, 2), c.dtype),
                 gate = rounded(random_values(c.rows * gates, 3, 2), c.gate);
    Values y, d_x, d_gate(gate.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t at = c.of_rows ? i / static_cast<std::size_t>(c.n) : i;
      const double s = sigmoid_of(gate[at]);
      y.push_back(x[i] * s);
      d_x.push_back(d_y[i] * s);
      d_gate[at] += d_y[i] * x[i] * s * (1 - s);
    }
    const Shape shape{c.rows, c.n}, gate_shape{c.rows, gates};
    const Tensor on_x = bench.upload(x, c.dtype, shape), on_gate = bench.upload(gate, c.gate, gate_shape),
                 on_d_y = bench.upload(d_y, c.dtype, shape), out = bench.empty(c.dtype, shape),
                 of_gate = bench.empty(c.gate, gate_shape);
    bench.run(GateForward{.x = on_x, .gate = on_gate, .y = out});
    const double tolerance = rounding_error(c.dtype) + 1e-6;
    EXPECT_LE(normalised_error(bench.download(out), y), tolerance);
    for (const Tensor& to : {out, on_d_y}) {  // the gradient of the second call overwrites d_y
      bench.run(GateBackward{.x = on_x, .gate = on_gate, .d_y = on_d_y, .d_x = to, .d_gate = of_gate});
      EXPECT_LE(normalised_error(bench.download(to), d_x), tolerance);
      EXPECT_LE(normalised_error(bench.download(of_gate), d_gate), rounding_error(c.gate) + 2e-6);
    }
  }
}

constexpr double kEpsilon = 1e-3;  // large enough to change results

struct Normed {
  std::int64_t rows, heads, dim;
  GateActivation activation;
  std::int64_t size() const { return rows * heads * dim; }
  double act(double g) const {
    return activation == GateActivation::kSilu ? g * sigmoid_of(g) : sigmoid_of(g);
  }
};

Values forward(const Normed& c, const Values& x, const Values& gate, const Values& weight) {
  Values y;
  const auto dim = static_cast<std::size_t>(c.dim);
  for (std::size_t head = 0; head < x.size() / dim; ++head) {
    double squares = 0;
    for (std::size_t i = head * dim; i < (head + 1) * dim; ++i) squares += x[i] * x[i];
    const double scale = 1 / std::sqrt(squares / static_cast<double>(dim) + kEpsilon);
    for (std::size_t i = head * dim; i < (head + 1) * dim; ++i)
      y.push_back(x[i] * scale * weight[i % dim] * c.act(gate[i]));
  }
  return y;
}

TEST_P(GateTest, HeadNormsHaveGates) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Normed& c : {Normed{1, 1, 3, GateActivation::kSilu},
                            {5, 2, 16, GateActivation::kSigmoid},
                            {3, 4, 8, GateActivation::kSilu},
                            {2, 1, 70, GateActivation::kSigmoid}}) {
      const Values x = rounded(random_values(c.size(), 1), dtype),
                   gate = rounded(random_values(c.size(), 2, 2), dtype),
                   d_y = rounded(random_values(c.size(), 3), dtype),
                   weight = rounded(random_values(c.dim, 4), dtype);
      const auto of = [&](const auto& make) {
        return [&, make](const Values& v) { return dot(make(v), d_y); };
      };
      const Values d_x = numeric_gradient(of([&](const Values&v) { return forward(c, v, gate, weight); }), x),
                   d_gate =
                       numeric_gradient(of([&](const Values&v) { return forward(c, x, v, weight); }), gate),
                   d_weight =
                       numeric_gradient(of([&](const Values&v) { return forward(c, x, gate, v); }), weight);
      const Shape shape{c.rows, c.heads * c.dim};
      const Tensor on_x = bench.upload(x, dtype, shape), on_gate = bench.upload(gate, dtype, shape),
                   on_d_y = bench.upload(d_y, dtype, shape), on_weight = bench.upload(weight, dtype, {c.dim}),
                   y = bench.empty(dtype, shape), rstd = bench.empty(DType::kF32, {c.rows, c.heads}),
                   of_x = bench.empty(dtype, shape), of_gate = bench.empty(dtype, shape);
      bench.run(GatedNormForward{.activation = c.activation,
                                 .x = on_x,
                                 .gate = on_gate,
                                 .weight = on_weight,
                                 .y = y,
                                 .rstd = rstd,
                                 .eps = static_cast<float>(kEpsilon)});
      const double tolerance = rounding_error(dtype) + 1e-6;
      EXPECT_LE(normalised_error(bench.download(y), forward(c, x, gate, weight)), tolerance);
      bench.run(GatedNormBackwardInput{.activation = c.activation,
                                       .x = on_x,
                                       .gate = on_gate,
                                       .weight = on_weight,
                                       .rstd = rstd,
                                       .d_y = on_d_y,
                                       .d_x = of_x,
                                       .d_gate = of_gate});
      EXPECT_LE(normalised_error(bench.download(of_x), d_x), tolerance);
      EXPECT_LE(normalised_error(bench.download(of_gate), d_gate), tolerance);
      for (const DType of_gradient : {DType::kF32, DType::kBF16}) {
        const Tensor gradient = bench.empty(of_gradient, {c.dim});
        for (const bool accumulate : {false, true}) {
          bench.run(GatedNormBackwardWeight{.activation = c.activation,
                                            .x = on_x,
                                            .gate = on_gate,
                                            .rstd = rstd,
                                            .d_y = on_d_y,
                                            .d_weight = gradient,
                                            .accumulate = accumulate,
                                            .workspace = {}});
          Values expected = d_weight;
          for (double& value : expected) value *= accumulate ? 2 : 1;
          EXPECT_LE(normalised_error(bench.download(gradient), expected),
                    (of_gradient == DType::kBF16 ? 2 * rounding_error(of_gradient) : 0) + 2e-6);
        }
      }
    }
  }
}

}  // namespace
}  // namespace primus::turbo::test
