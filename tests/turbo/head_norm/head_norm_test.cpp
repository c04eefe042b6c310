#include "turbo/head_norm/head_norm.h"

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

constexpr double kEpsilon = 1e-3;  // large enough to change results

struct Case {
  std::int64_t tokens;
  HeadNormShape shape;
  std::int64_t values;  // number of columns after the normalised columns
  bool weighted;
  double offset = 0;
  std::int64_t width() const { return shape.normed() * shape.head_dim + values; }
};

const Case kCases[] = {{1, {1, 1, 3}, 0, true},    {7, {4, 2, 16}, 32, true}, {300, {3, 1, 20}, 7, true},
                       {5, {2, 2, 128}, 5, false}, {9, {1, 0, 33}, 8, false}, {2, {0, 3, 70}, 0, true},
                       {6, {2, 1, 20}, 8, true, 1}};

struct Reference {
  Case c;
  Values y, rstd, d_x, d_weight;

  Reference(const Case& problem, const Values& x, const Values& weight, const Values& d_y)
      : c(problem), y(x), d_x(d_y), d_weight(static_cast<std::size_t>(2 * c.shape.head_dim), 0) {
    const std::int64_t dim = c.shape.head_dim;
    for (std::int64_t row = 0; row < c.tokens; ++row) {
      for (std::int64_t head = 0; head < c.shape.normed(); ++head) {
        const auto at = static_cast<std::size_t>(row * c.width() + head * dim);
        const auto n = static_cast<std::size_t>(dim);
        const std::size_t w = head < c.shape.heads ? 0 : n;
        double squares = 0, along = 0;
        for (std::size_t i = 0; i < n; ++i) squares += x[at + i] * x[at + i];
        const double scale = 1 / std::sqrt(squares / static_cast<double>(dim) + kEpsilon);
        rstd.push_back(scale);
        const auto weight_at = [&](std::size_t i) { return c.weighted ? weight[w + i] + c.offset : 1.0; };
        for (std::size_t i = 0; i < n; ++i) along += d_y[at + i] * weight_at(i) * x[at + i];
        along *= scale * scale * scale / static_cast<double>(dim);
        for (std::size_t i = 0; i < n; ++i) {
          y[at + i] = x[at + i] * scale * weight_at(i);
          d_x[at + i] = d_y[at + i] * weight_at(i) * scale - x[at + i] * along;
          d_weight[w + i] += d_y[at + i] * x[at + i] * scale;
        }
      }
    }
  }
};

TEST(HeadNormReference, GradientsAreFiniteDifferences) {
  const Case c{2, {2, 1, 3}, 2, true};
  const Values x = random_values(c.tokens * c.width(), 1), weight = random_values(6, 2),
               d_y = random_values(c.tokens * c.width(), 3);
  const Reference reference(c, x, weight, d_y);
  const auto of_x = [&](const Values& v) { return dot(Reference(c, v, weight, d_y).y, d_y); };
  const auto of_weight = [&](const Values& v) { return dot(Reference(c, x, v, d_y).y, d_y); };
  EXPECT_LE(normalised_error(reference.d_x, numeric_gradient(of_x, x)), 1e-8);
  EXPECT_LE(normalised_error(reference.d_weight, numeric_gradient(of_weight, weight)), 1e-8);
}

class HeadNormTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, HeadNormTest, ::testing::ValuesIn(devices_under_test()));

TEST_P(HeadNormTest, ForwardAndGradients) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Case& c : kCases) {
      SCOPED_TRACE("head_dim " + std::to_string(c.shape.head_dim) + " " + std::string(name_of(dtype)));
      const std::int64_t n = c.tokens * c.width();
      const Values x = rounded(random_values(n, 1), dtype), d_y = rounded(random_values(n, 3), dtype);
      const Values weight = rounded(random_values(2 * c.shape.head_dim, 2), dtype);
      const Reference expected(c, x, weight, d_y);
      const double tolerance = rounding_error(dtype) + 1e-6;

      const Shape shape{c.tokens, c.width()};
      const Tensor x_device = bench.upload(x, dtype, shape), d_y_device = bench.upload(d_y, dtype, shape);
      const Tensor weight_device =
          c.weighted ? bench.upload(weight, dtype, {2 * c.shape.head_dim}) : Tensor();
      const Tensor y = bench.empty(dtype, shape),
                   rstd = bench.empty(DType::kF32, {c.tokens, c.shape.normed()});
      bench.run(HeadNormForward{.shape = c.shape,
                                .x = x_device,
                                .weight = weight_device,
                                .y = y,
                                .rstd = rstd,
                                .eps = static_cast<float>(kEpsilon),
                                .offset = static_cast<float>(c.offset)});
      EXPECT_LE(normalised_error(bench.download(y), expected.y), tolerance);
      EXPECT_LE(normalised_error(bench.download(rstd), expected.rstd), 1e-6);

      for (const DType of_gradient : {DType::kF32, DType::kBF16}) {
        const Tensor d_weight = bench.zeros(of_gradient, {2 * c.shape.head_dim});
        bench.run(HeadNormBackwardWeight{.shape = c.shape,
                                         .x = x_device,
                                         .rstd = rstd,
                                         .d_y = d_y_device,
                                         .d_weight = d_weight,
                                         .accumulate = true,
                                         .workspace = {}});
        EXPECT_LE(normalised_error(bench.download(d_weight), expected.d_weight),
                  (of_gradient == DType::kBF16 ? rounding_error(of_gradient) : 0) + 2e-6);
      }
      const Tensor apart = bench.empty(dtype, shape);
      for (const Tensor& d_x : {apart, d_y_device}) {  // the gradient of the second call overwrites d_y
        bench.run(HeadNormBackwardInput{.shape = c.shape,
                                        .x = x_device,
                                        .weight = weight_device,
                                        .rstd = rstd,
                                        .d_y = d_y_device,
                                        .d_x = d_x,
                                        .offset = static_cast<float>(c.offset)});
        EXPECT_LE(normalised_error(bench.download(d_x), expected.d_x), tolerance);
      }
    }
  }
}

}  // namespace
}  // namespace primus::turbo::test
