#include "turbo/hyper_connection/hyper_connection.h"

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

struct Case {
  std::int64_t tokens, streams, hidden, iterations;
  DType dtype = DType::kF32;

  HyperShape shape() const { return {streams, iterations, 1e-6F, 1e-6F}; }
  std::int64_t width() const { return streams * hidden; }
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.tokens << " tokens, " << c.streams << " streams of " << c.hidden << ", " << c.iterations
             << " iterations, " << name_of(c.dtype);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    all.push_back({3, 4, 24, 20, dtype});
    all.push_back({2, 2, 7, 1, dtype});
    all.push_back({5, 3, 300, 3, dtype});
    all.push_back({2, 8, 16, 64, dtype});
    all.push_back({3, 4, 40, 0, dtype});
  }
  return all;
}

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

struct Operands {
  Values x, products, base, scale, out, d_y, d_z;

  explicit Operands(const Case& c)
      : x(rounded(random_values(c.tokens * c.width(), 1), c.dtype)),
        products(rounded(random_values(c.tokens * c.shape().products(), 2), DType::kF32)),
        base(rounded(random_values(c.shape().products(), 3, 0.5), DType::kF32)),
        scale(rounded(random_values(c.shape().scales(), 4), DType::kF32)),
        out(rounded(random_values(c.tokens * c.hidden, 5), c.dtype)),
        d_y(rounded(random_values(c.tokens * c.hidden, 6), c.dtype)),
        d_z(rounded(random_values(c.tokens * c.width(), 7), c.dtype)) {}
};

struct Results {
  Values y, mixing, z;
};

// Computes the definition in the header. `mixing` and `z` are empty if the shape does not mix streams.
Results reference(const Case& c, const Operands& o) {
  const HyperShape s = c.shape();
  const std::int64_t n = c.streams, m = s.products();
  Results r;
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    double squares = 0;
    for (std::int64_t i = 0; i < c.width(); ++i)
      squares += o.x[at(t * c.width() + i)] * o.x[at(t * c.width() + i)];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(c.width()) + 1e-6);
    const auto argument = [&](std::int64_t i) {
      return o.scale[at(std::min<std::int64_t>(i / n, 2))] * o.products[at(t * m + i)] * rstd + o.base[at(i)];
    };
    const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
    for (std::int64_t i = 0; i < c.hidden; ++i) {
      double sum = 0;
      for (std::int64_t j = 0; j < n; ++j)
        sum += (sigmoid(argument(j)) + 1e-6) * o.x[at(t * c.width() + j * c.hidden + i)];
      r.y.push_back(sum);
    }
    if (!s.mixes()) continue;
    Values post, comb;
    for (std::int64_t j = 0; j < n; ++j) post.push_back(2 * sigmoid(argument(n + j)));
    for (std::int64_t i = 0; i < n; ++i) {
      double sum = 0;
      for (std::int64_t j = 0; j < n; ++j) sum += std::exp(argument((2 + i) * n + j));
      for (std::int64_t j = 0; j < n; ++j) comb.push_back(std::exp(argument((2 + i) * n + j)) / sum + 1e-6);
    }
    for (std::int64_t step = 0; step < 2 * c.iterations - 1; ++step) {
      for (std::int64_t l = 0; l < n; ++l) {
        double sum = 1e-6;
        const auto of = [&](std::int64_t i) { return at(step % 2 == 0 ? i * n + l : l * n + i); };
        for (std::int64_t i = 0; i < n; ++i) sum += comb[of(i)];
        for (std::int64_t i = 0; i < n; ++i) comb[of(i)] /= sum;
      }
    }
    r.mixing.insert(r.mixing.end(), post.begin(), post.end());
    r.mixing.insert(r.mixing.end(), comb.begin(), comb.end());
    for (std::int64_t k = 0; k < n; ++k) {
      for (std::int64_t i = 0; i < c.hidden; ++i) {
        double sum = post[at(k)] * o.out[at(t * c.hidden + i)];
        for (std::int64_t j = 0; j < n; ++j)
          sum += comb[at(j * n + k)] * o.x[at(t * c.width() + j * c.hidden + i)];
        r.z.push_back(sum);
      }
    }
  }
  return r;
}

// Returns dot(y, d_y) + dot(z, d_z).
double loss(const Case& c, const Operands& o) {
  const Results r = reference(c, o);
  return dot(r.y, o.d_y) + dot(r.z, o.d_z);
}

Values gradient(const Case& c, const Operands& o, Values Operands::*by) {
  Operands changed = o;
  return numeric_gradient(
      [&](const Values& values) {
        changed.*by = values;
        return loss(c, changed);
      },
      o.*by);
}

class HyperConnectionTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, HyperConnectionTest, ::testing::ValuesIn(devices_under_test()));

TEST_P(HyperConnectionTest, ForwardAndBackward) {
  OperatorBench bench(GetParam());
  for (const Case& c : cases()) {
    SCOPED_TRACE(testing::PrintToString(c));
    const HyperShape s = c.shape();
    const Operands o(c);
    const Tensor x = bench.upload(o.x, c.dtype, {c.tokens, c.width()});
    const Tensor out = bench.upload(o.out, c.dtype, {c.tokens, c.hidden});
    const Tensor products = bench.upload(o.products, DType::kF32, {c.tokens, s.products()});
    const Tensor base = bench.upload(o.base, DType::kF32, {s.products()});
    const Tensor scale = bench.upload(o.scale, DType::kF32, {s.scales()});
    const Tensor y = bench.empty(c.dtype, {c.tokens, c.hidden}), rstd = bench.empty(DType::kF32, {c.tokens});
    const Tensor mixing = s.mixes() ? bench.empty(DType::kF32, {c.tokens, s.mixing()}) : Tensor();
    bench.run(HyperRead{.shape = s,
                        .x = x,
                        .products = products,
                        .base = base,
                        .scale = scale,
                        .y = y,
                        .mixing = mixing,
                        .rstd = rstd});
    const Results expected = reference(c, o);
    const double tolerance = rounding_error(c.dtype) + 1e-5;
    EXPECT_LE(normalised_error(bench.download(y), expected.y), tolerance);

    const Tensor d_y = bench.upload(o.d_y, c.dtype, {c.tokens, c.hidden});
    const Tensor d_x = bench.zeros(c.dtype, {c.tokens, c.width()});
    Tensor d_mixing;
    if (s.mixes()) {
      EXPECT_LE(normalised_error(bench.download(mixing), expected.mixing), 1e-5);
      const Tensor z = bench.empty(c.dtype, {c.tokens, c.width()});
      bench.run(HyperWrite{.shape = s, .x = x, .out = out, .mixing = mixing, .z = z});
      EXPECT_LE(normalised_error(bench.download(z), expected.z), tolerance);
      const Tensor d_out = bench.empty(c.dtype, {c.tokens, c.hidden});
      d_mixing = bench.empty(DType::kF32, mixing.shape);
      bench.run(HyperWriteBackward{.shape = s,
                                   .x = x,
                                   .out = out,
                                   .mixing = mixing,
                                   .d_z = bench.upload(o.d_z, c.dtype, {c.tokens, c.width()}),
                                   .previous = d_x,
                                   .d_x = d_x,
                                   .d_out = d_out,
                                   .d_mixing = d_mixing});
      EXPECT_LE(normalised_error(bench.download(d_out), gradient(c, o, &Operands::out)), tolerance);
    }
    const Tensor d_products = bench.empty(DType::kF32, products.shape);
    const Tensor d_base = bench.empty(DType::kF32, products.shape);
    const Tensor d_scale = bench.empty(DType::kF32, {c.tokens, s.scales()});
    bench.run(HyperReadBackward{.shape = s,
                                .x = x,
                                .products = products,
                                .base = base,
                                .scale = scale,
                                .rstd = rstd,
                                .d_y = d_y,
                                .d_mixing = d_mixing,
                                .previous = d_x,
                                .d_x = d_x,
                                .d_products = d_products,
                                .d_base = d_base,
                                .d_scale = d_scale});
    // The sum of the gradients of HyperRead and HyperWrite is rounded twice.
    EXPECT_LE(normalised_error(bench.download(d_x), gradient(c, o, &Operands::x)), 2 * tolerance);
    const double of_factors = 2e-5;
    EXPECT_LE(normalised_error(bench.download(d_products), gradient(c, o, &Operands::products)), of_factors);
    const auto summed = [&](const Tensor& rows) {
      const Values all = bench.download(rows);
      Values sum(at(rows.cols()));
      for (std::size_t i = 0; i < all.size(); ++i) sum[i % sum.size()] += all[i];
      return sum;
    };
    EXPECT_LE(normalised_error(summed(d_base), gradient(c, o, &Operands::base)), of_factors);
    EXPECT_LE(normalised_error(summed(d_scale), gradient(c, o, &Operands::scale)), of_factors);
  }
}

TEST(HyperConnectionReference, MixturesSumToOne) {
  const Case c{4, 4, 8, 20};
  const Values mixing = reference(c, Operands(c)).mixing;
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    for (std::int64_t i = 0; i < 4; ++i) {
      double row = 0, column = 0;
      for (std::int64_t j = 0; j < 4; ++j) {
        row += mixing[at(t * 20 + 4 + i * 4 + j)];
        column += mixing[at(t * 20 + 4 + j * 4 + i)];
      }
      EXPECT_NEAR(row, 1, 1e-3);
      EXPECT_NEAR(column, 1, 1e-5);
    }
  }
}

}  // namespace
}  // namespace primus::turbo::test
