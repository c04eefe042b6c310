#include "turbo/rope/rope.h"

#include "turbo/head_norm/head_norm.h"
#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

struct Case {
  std::int64_t tokens, width, heads, head_dim, rotary_dim;
  std::int64_t rotary_begin = 0;
  bool interleaved = false;
};

// The cases rotate complete heads, a part of each head, or only some of the heads (before the value columns
// of a fused projection). Further cases have an odd number of columns that are not rotated, pairs of adjacent
// columns, and a rotated part that is not at the beginning of the head (latent attention).
const Case kCases[] = {{1, 64, 1, 64, 64},
                       {9, 5 * 48, 5, 48, 48},
                       {40, 6 * 32, 4, 32, 32},
                       {7, 2 * 80, 2, 80, 20},
                       {3, 2 * 10 + 7, 2, 10, 6},
                       {2, 24, 0, 8, 8},
                       {9, 6 * 32, 4, 32, 32, 0, true},
                       {5, 3 * 20 + 1, 3, 20, 8, 12, true},
                       {5, 3 * 20, 3, 20, 6, 9, false}};
constexpr std::int64_t kPositions = 50;

Values rope_table(std::int64_t rotary_dim) {
  Values table;
  for (std::int64_t p = 0; p < kPositions; ++p) {
    for (const bool sines : {false, true}) {
      for (std::int64_t i = 0; i < rotary_dim / 2; ++i) {
        const double angle = static_cast<double>(p) * std::pow(10000.0, -2.0 * static_cast<double>(i) /
                                                                            static_cast<double>(rotary_dim));
        table.push_back(rounded(1.1 * (sines ? std::sin(angle) : std::cos(angle)), DType::kF32));
      }
    }
  }
  return table;
}

Values positions_for(std::int64_t tokens) {
  Values positions;
  for (std::int64_t t = 0; t < tokens; ++t) positions.push_back(static_cast<double>(t * 17 % kPositions));
  return positions;
}

Values reference(const Values& x, const Case& c, bool inverse) {
  const Values table = rope_table(c.rotary_dim), positions = positions_for(c.tokens);
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  const std::int64_t half = c.rotary_dim / 2;
  Values y = x;
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    for (std::int64_t head = 0; head < c.heads; ++head) {
      for (std::int64_t i = 0; i < half; ++i) {
        const auto row = static_cast<std::int64_t>(positions[at(t)]) * c.rotary_dim;
        const double cosine = table[at(row + i)], sine = table[at(row + half + i)] * (inverse ? -1 : 1);
        const std::int64_t part = t * c.width + head * c.head_dim + c.rotary_begin;
        const std::size_t low = at(part + (c.interleaved ? 2 * i : i)),
                          high = low + at(c.interleaved ? 1 : half);
        y[low] = x[low] * cosine - x[high] * sine;
        y[high] = x[high] * cosine + x[low] * sine;
      }
    }
  }
  return y;
}

TEST(RopeReference, TheGradientIsTheInverseRotation) {
  const Case c{3, 16, 2, 8, 6};
  const Values x = random_values(c.tokens * c.width, 1), d_y = random_values(c.tokens * c.width, 2);
  const auto loss = [&](const Values& v) { return dot(reference(v, c, false), d_y); };
  EXPECT_LE(normalised_error(reference(d_y, c, true), numeric_gradient(loss, x)), 1e-8);
}

class RopeTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, RopeTest, ::testing::ValuesIn(devices_under_test()));

TEST_P(RopeTest, RotatesForwardsAndBackwards) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Case& c : kCases) {
      const Shape shape{c.tokens, c.width};
      const Values x = rounded(random_values(c.tokens * c.width, 1), dtype);
      const Tensor positions = bench.upload(positions_for(c.tokens), DType::kI32, {c.tokens});
      const Tensor table = bench.upload(rope_table(c.rotary_dim), DType::kF32, {kPositions, c.rotary_dim});
      for (const bool inverse : {false, true}) {
        for (const bool in_place : {false, true}) {
          const Tensor x_device = bench.upload(x, dtype, shape);
          const Tensor y = in_place ? x_device : bench.empty(dtype, shape);
          bench.run(Rope{.x = x_device,
                         .y = y,
                         .positions = positions,
                         .table = table,
                         .heads = c.heads,
                         .head_dim = c.head_dim,
                         .rotary_dim = c.rotary_dim,
                         .rotary_begin = c.rotary_begin,
                         .interleaved = c.interleaved,
                         .inverse = inverse});
          EXPECT_LE(normalised_error(bench.download(y), reference(x, c, inverse)),
                    rounding_error(dtype) + 2e-7)
              << "width " << c.width << (inverse ? ", inverse" : "") << (in_place ? ", in place" : "");
        }
      }
    }
  }
}

// A norm that is fused with the rotation has the same bits as both operators, run one after the other.
TEST(Rope, NormedHeadsHaveTheBitsOfTheirStepsOnAGpu) {
  struct NormedCase {
    std::int64_t rows, heads, kv_heads, head_dim, rotary_dim, begin;
    bool interleaved;
    float offset;
  };
  for (const DeviceUnderTest& spec : devices_under_test()) {
    if (spec.emulated_warp == 0 && spec.plugin.empty()) continue;
    SCOPED_TRACE(spec.name());
    OperatorBench bench(spec);
    for (const NormedCase& c : {NormedCase{1, 4, 2, 128, 128, 0, false, 0},
                                {3, 2, 1, 256, 64, 0, false, 1},
                                {2, 3, 3, 24, 8, 16, true, 0}}) {
      const std::int64_t heads = c.heads + c.kv_heads, width = (heads + c.kv_heads) * c.head_dim;
      constexpr std::int64_t kTableRows = 40;
      const auto random = [&](std::uint64_t seed, Shape shape, DType dtype = DType::kBF16) {
        return bench.upload(random_values(shape.elements(), seed), dtype, shape);
      };
      const Shape shape{c.rows, width};
      Values positions;
      for (std::int64_t i = 0; i < c.rows; ++i) positions.push_back(static_cast<double>(i * 7 + 3));
      Rope call{.x = random(1, shape),
                .y = bench.empty(DType::kBF16, shape),
                .positions = bench.upload(positions, DType::kI32, {c.rows}),
                .table = random(2, {kTableRows, c.rotary_dim}, DType::kF32),
                .heads = heads,
                .head_dim = c.head_dim,
                .rotary_dim = c.rotary_dim,
                .rotary_begin = c.begin,
                .interleaved = c.interleaved,
                .inverse = false,
                .norm = {.weight = random(3, {2 * c.head_dim}),
                         .query_heads = c.heads,
                         .eps = 1e-6F,
                         .offset = c.offset}};
      ASSERT_TRUE(is_taken(bench.device(), call));
      bench.run(call);
      const Tensor y = bench.empty(DType::kBF16, shape);
      bench.run(HeadNormForward{.shape = {c.heads, c.kv_heads, c.head_dim},
                                .x = call.x,
                                .weight = call.norm.weight,
                                .y = y,
                                .rstd = bench.empty(DType::kF32, {c.rows, heads}),
                                .eps = call.norm.eps,
                                .offset = c.offset});
      Rope steps = call;
      steps.x = steps.y = y, steps.norm = {};
      bench.run(steps);
      EXPECT_EQ(bench.download(call.y), bench.download(y));
    }
  }
}

}  // namespace
}  // namespace primus::turbo::test
