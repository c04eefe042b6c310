#include "turbo/latent_pooling/latent_pooling.h"

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

struct Case {
  PoolingShape shape;
  DType dtype = DType::kF32;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.shape.batch << " x " << c.shape.sequence << " tokens, blocks of " << c.shape.ratio << ", "
             << c.shape.dim << " columns" << (c.shape.overlap ? ", overlap" : "") << ", " << name_of(c.dtype);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool overlap : {false, true}) {
      all.push_back({{2, 13, 4, 7, overlap}, dtype});
      all.push_back({{1, 3, 3, 5, overlap}, dtype});
      all.push_back({{2, 9, 1, 6, overlap}, dtype});
      all.push_back({{1, 8, 2, 300, overlap}, dtype});
    }
  }
  return all;
}

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

struct Operands {
  Values x, bias, d_out;

  explicit Operands(const Case& c)
      : x(rounded(random_values(c.shape.rows() * c.shape.width(), 1), c.dtype)),
        bias(rounded(random_values(c.shape.ratio * c.shape.parts() * c.shape.dim, 2), DType::kF32)),
        d_out(rounded(random_values(c.shape.pooled() * c.shape.dim, 3), c.dtype)) {}
};

Values reference(const PoolingShape& s, const Operands& o) {
  Values out;
  const std::int64_t gates = s.parts() * s.dim;
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t w = 0; w < s.blocks(); ++w) {
      for (std::int64_t c = 0; c < s.dim; ++c) {
        double sum = 0, weighted = 0;
        const auto slot = [&](std::int64_t block, std::int64_t r, std::int64_t column) {
          const std::int64_t row = b * s.sequence + block * s.ratio + r;
          const double p =
              std::exp(o.x[at(row * s.width() + gates + column)] + o.bias[at(r * gates + column)]);
          sum += p;
          weighted += p * o.x[at(row * s.width() + column)];
        };
        for (std::int64_t r = 0; r < s.ratio; ++r) {
          if (s.overlap && w > 0) slot(w - 1, r, c);
          slot(w, r, s.overlap ? s.dim + c : c);
        }
        out.push_back(weighted / sum);
      }
    }
  }
  return out;
}

Values gradient(const Case& c, const Operands& o, Values Operands::*by) {
  Operands changed = o;
  return numeric_gradient(
      [&](const Values& values) {
        changed.*by = values;
        return dot(reference(c.shape, changed), o.d_out);
      },
      o.*by);
}

class LatentPoolingTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, LatentPoolingTest, ::testing::ValuesIn(devices_under_test()));

TEST_P(LatentPoolingTest, ForwardAndBackward) {
  OperatorBench bench(GetParam());
  for (const Case& c : cases()) {
    SCOPED_TRACE(testing::PrintToString(c));
    const PoolingShape& s = c.shape;
    const Operands o(c);
    const Tensor x = bench.upload(o.x, c.dtype, {s.rows(), s.width()});
    const Tensor bias = bench.upload(o.bias, DType::kF32, {s.ratio, s.parts() * s.dim});
    const Tensor out = bench.empty(c.dtype, {s.pooled(), s.dim});
    bench.run(LatentPooling{.shape = s, .x = x, .bias = bias, .out = out});
    const double tolerance = rounding_error(c.dtype) + 2e-6;
    EXPECT_LE(normalised_error(bench.download(out), reference(s, o)), tolerance);
    if (s.dim > 100) continue;  // finite differences would take too long
    const Tensor d_x = bench.empty(c.dtype, x.shape), d_bias = bench.empty(DType::kF32, bias.shape);
    bench.run(LatentPoolingBackward{.shape = s,
                                    .x = x,
                                    .bias = bias,
                                    .d_out = bench.upload(o.d_out, c.dtype, out.shape),
                                    .d_x = d_x,
                                    .d_bias = d_bias,
                                    .workspace = {}});
    EXPECT_LE(normalised_error(bench.download(d_x), gradient(c, o, &Operands::x)), tolerance);
    // A softmax over a single gate is constant, so the gradient of the bias is zero.
    const Values expected =
        s.ratio == 1 && !s.overlap ? Values(o.bias.size()) : gradient(c, o, &Operands::bias);
    EXPECT_LE(normalised_error(bench.download(d_bias), expected), 2 * tolerance);
  }
}

// Each token selects the tokens of its window and pooled blocks: either all complete blocks, or the chosen
// blocks.
TEST_P(LatentPoolingTest, SelectsWindowsAndPooledBlocks) {
  OperatorBench bench(GetParam());
  constexpr std::int64_t kBatch = 2, kSequence = 7;
  const Tensor all = bench.empty(DType::kI32, {kBatch * kSequence, 3 + 3});
  bench.run(WindowAndPooled{
      .batch = kBatch, .sequence = kSequence, .window = 3, .ratio = 2, .chosen = {}, .selected = all});
  Values expected;
  for (std::int64_t token = 0; token < kBatch * kSequence; ++token) {
    const std::int64_t position = token % kSequence, sequence = token / kSequence;
    for (std::int64_t i = 0; i < 3; ++i)
      expected.push_back(i <= position ? static_cast<double>(token - i) : -1);
    for (std::int64_t block = 0; block < 3; ++block)
      expected.push_back(2 * block + 1 <= position ? static_cast<double>(14 + sequence * 3 + block) : -1);
  }
  EXPECT_EQ(bench.download(all), expected);
  Values chosen(at(kBatch * kSequence), -1.0);
  chosen[5] = 2;
  chosen[12] = 4;
  const Tensor some = bench.empty(DType::kI32, {kBatch * kSequence, 1 + 1});
  bench.run(WindowAndPooled{.batch = kBatch,
                            .sequence = kSequence,
                            .window = 1,
                            .ratio = 2,
                            .chosen = bench.upload(chosen, DType::kI32, {kBatch * kSequence, 1}),
                            .selected = some});
  const Values selected = bench.download(some);
  for (std::size_t token = 0; token < chosen.size(); ++token) {
    EXPECT_EQ(selected[2 * token], static_cast<double>(token));
    EXPECT_EQ(selected[2 * token + 1], chosen[token] < 0 ? -1 : 14 + chosen[token]);
  }
}

}  // namespace
}  // namespace primus::turbo::test
