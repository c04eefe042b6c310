#include "turbo/linear/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "turbo/bias/bias.h"
#include "turbo/linear_layer.h"
#include "turbo/operator_test.h"
#include "turbo/rms_norm/rms_norm.h"
#include "turbo/rope/rope.h"
#include "turbo/swiglu/swiglu.h"

namespace primus::turbo::test {
namespace {

std::vector<Layer> layers() { return {{1, 1, 1}, {5, 12, 7}, {33, 64, 48}, {130, 80, 136}, {1, 300, 65}}; }

struct Types {
  DType a, b, c;
};

using Benches = std::map<std::string, OperatorBench>;

Benches every_bench() {
  Benches benches;
  for (const DeviceUnderTest& spec : devices_under_test()) benches.try_emplace(spec.name(), spec);
  return benches;
}

// Tests a product on all devices. The reference is slow, so it is computed once for all devices.
void expect_product(Benches& benches, GemmRole role, const Layer& layer, Types types, bool accumulate) {
  const DType result = types.c;
  SCOPED_TRACE("role " + std::to_string(static_cast<int>(role)) + " tokens " + std::to_string(layer.tokens) +
               " " + std::string(name_of(types.a)) + " · " + std::string(name_of(types.b)) + " to " +
               std::string(name_of(result)) + (accumulate ? " +=" : ""));
  const Shapes s = shapes(role, layer);
  const Values a = rounded(random_values(s.a.elements(), 1), types.a);
  const Values b = rounded(random_values(s.b.elements(), 2), types.b);
  const Values before = rounded(random_values(s.c.elements(), 3), result);
  Values expected = product(role, layer, a, b);
  if (accumulate) {
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += before[i];
  }
  for (auto& [name, bench] : benches) {
    SCOPED_TRACE(name);
    const Gemm call{.role = role,
                    .a = bench.upload(a, types.a, s.a),
                    .b = bench.upload(b, types.b, s.b),
                    .c = accumulate ? bench.upload(before, result, s.c) : bench.empty(result, s.c),
                    .accumulate = accumulate,
                    .workspace = {}};
    bench.run(call);
    // When a product is added to a bf16 weight gradient, a GPU library may round both the product and the
    // sum.
    const int roundings = role == GemmRole::kWeightGradient && accumulate ? 2 : 1;
    // Rounding errors of n additions in fp32 grow like sqrt(n); 8328 additions exceed the usual 2e-6.
    const double sums = std::max(2e-6, std::sqrt(static_cast<double>(layer.in)) * 0x1p-24);
    EXPECT_LE(normalised_error(bench.download(call.c), expected), roundings * rounding_error(result) + sums);
    EXPECT_EQ(call.flops(), 2.0 * static_cast<double>(layer.tokens * layer.in * layer.out));
  }
}

TEST(Linear, RolesMatchReference) {
  Benches benches = every_bench();
  for (const Layer& layer : layers()) {
    for (const GemmRole role : kRoles) {
      for (const bool accumulate : {false, true}) {
        for (const DType a : {DType::kF32, DType::kBF16}) {
          for (const DType b : {DType::kF32, DType::kBF16}) {
            expect_product(benches, role, layer, {a, b, DType::kF32}, accumulate);
            expect_product(benches, role, layer, {a, b, DType::kBF16}, accumulate);
          }
        }
      }
    }
  }
}

// GPUs split the fp32 operands of routers into bf16 parts and use tiles of 64 x 128 (gpu_split.h). The cases
// have several tiles, partial tiles, long sums that are divided among blocks, and as few as 8 experts.
TEST(Linear, ProductsOfRoutersMatchReference) {
  Benches benches = every_bench();
  for (const Layer& layer : {Layer{70, 136, 136}, {300, 72, 24}, {1, 1032, 128}, {40, 264, 8}}) {
    for (const bool accumulate : {false, true}) {
      expect_product(benches, GemmRole::kForward, layer, {DType::kBF16, DType::kF32, DType::kF32},
                     accumulate);
      expect_product(benches, GemmRole::kInputGradient, layer, {DType::kF32, DType::kF32, DType::kBF16},
                     accumulate);
      expect_product(benches, GemmRole::kWeightGradient, layer, {DType::kF32, DType::kBF16, DType::kF32},
                     accumulate);
    }
  }
}

// GPUs add products of low rank to a result by tiles of 64 x 128 (gpu_short_sum.h). The cases have several
// tiles, partial tiles, and sums of 8 to 64 terms; the last sum is too long for this kernel.
TEST(Linear, ProductsOfLowRankAreAdded) {
  Benches benches = every_bench();
  constexpr Types kTypes{DType::kBF16, DType::kBF16, DType::kBF16};
  for (const std::int64_t rank : {8, 16, 24, 40, 64, 72}) {
    expect_product(benches, GemmRole::kForward, {.tokens = 70, .in = rank, .out = 136}, kTypes, true);
    expect_product(benches, GemmRole::kInputGradient, {.tokens = 70, .in = 136, .out = rank}, kTypes, true);
  }
  expect_product(benches, GemmRole::kForward, {.tokens = 1, .in = 16, .out = 8}, kTypes, true);
  expect_product(benches, GemmRole::kInputGradient, {.tokens = 130, .in = 264, .out = 16}, kTypes, true);
}

// GPUs divide long sums with few results among blocks (gpu_narrow.h). The cases have one and several steps
// per block, partial steps, and several tiles.
TEST(Linear, LongSumsWithFewResultsMatchReference) {
  Benches benches = every_bench();
  for (const Layer& layer :
       {Layer{1, 1024, 16}, {9, 1096, 8}, {64, 1024, 40}, {70, 8328, 16}, {128, 1032, 33}}) {
    expect_product(benches, GemmRole::kForward, layer, {DType::kBF16, DType::kBF16, DType::kBF16}, false);
    expect_product(benches, GemmRole::kForward, layer, {DType::kBF16, DType::kBF16, DType::kF32}, false);
  }
}

// GPUs compute layers with one output by multiply-adds (gpu_single_column.h). The cases have many rows,
// partial vectors across a warp, and a row length that is not a multiple of a vector.
TEST(Linear, LayersWithOneOutputMatchReference) {
  Benches benches = every_bench();
  for (const Layer& layer : {Layer{300, 264, 1}, {9, 1032, 1}, {1, 8, 1}, {40, 20, 1}}) {
    for (const GemmRole role : kRoles) {
      for (const bool accumulate : {false, true}) {
        expect_product(benches, role, layer, {DType::kBF16, DType::kBF16, DType::kBF16}, accumulate);
        expect_product(benches, role, layer, {DType::kBF16, DType::kBF16, DType::kF32}, accumulate);
      }
    }
  }
}

// GPUs compute a product with a large sum and a 16-bit result in two parts (added_apart.h).
TEST(Linear, LargeSumsMatchReference) {
  Benches benches;
  for (const DeviceUnderTest& spec : devices_under_test()) {
    if (spec.plugin.empty()) GTEST_SKIP() << "no GPU under test";
    benches.try_emplace(spec.name(), spec);
  }
  const Layer layer{.tokens = 576, .in = 16128, .out = 8};
  expect_product(benches, GemmRole::kInputGradient, layer, {DType::kBF16, DType::kBF16, DType::kBF16}, true);
}

// If an operand is fp16, both operands must be fp16, and the result is fp16 or fp32. There is no separate
// kernel for a single row in fp16.
TEST(Linear, ProductsInFp16MatchReference) {
  Benches benches = every_bench();
  std::vector<Layer> all = layers();
  all.push_back({1, 256, 40});
  // Adds a case whose extents in bytes are multiples of 16, as libraries require.
  all.push_back({64, 128, 64});
  for (const Layer& layer : all) {
    for (const GemmRole role : kRoles) {
      for (const bool accumulate : {false, true}) {
        for (const DType result : {DType::kF32, DType::kF16})
          expect_product(benches, role, layer, {DType::kF16, DType::kF16, result}, accumulate);
      }
    }
  }
}

// Sums are computed in fp32, so terms that exceed the range of fp16 may cancel.
TEST(Linear, SumsInFp16DoNotOverflow) {
  for (const DeviceUnderTest& spec : devices_under_test()) {
    SCOPED_TRACE(spec.name());
    OperatorBench bench(spec);
    constexpr std::int64_t kLength = 64;
    Values a(kLength, 1000.0), b(kLength, 1000.0);
    for (std::size_t i = kLength / 2; i < b.size(); ++i) b[i] = -1000;
    b[0] = 1008;  // 1000 and 1008 are exact in fp16
    const Gemm call{.role = GemmRole::kForward,
                    .a = bench.upload(a, DType::kF16, {1, kLength}),
                    .b = bench.upload(b, DType::kF16, {1, kLength}),
                    .c = bench.empty(DType::kF16, {1, 1}),
                    .workspace = {}};
    bench.run(call);
    EXPECT_EQ(bench.download(call.c), (Values{8000.0}));
  }
}

TEST(Linear, Fp16WithAnotherTypeIsRefused) {
  OperatorBench bench;
  const auto tensor = [&](DType dtype) { return bench.zeros(dtype, {4, 4}); };
  const auto call = [&](DType a, DType b, DType c) {
    return Gemm{.role = GemmRole::kForward, .a = tensor(a), .b = tensor(b), .c = tensor(c), .workspace = {}};
  };
  EXPECT_NO_THROW(call(DType::kF16, DType::kF16, DType::kF32).check());
  for (const DType other : {DType::kF32, DType::kBF16}) {
    EXPECT_THROW(call(DType::kF16, other, DType::kF32).check(), std::logic_error);
    EXPECT_THROW(call(other, DType::kF16, DType::kF32).check(), std::logic_error);
    EXPECT_THROW(call(other, other, DType::kF16).check(), std::logic_error);
  }
  EXPECT_THROW(call(DType::kF16, DType::kF16, DType::kBF16).check(), std::logic_error);
}

// GPUs have a kernel for products with few rows, as in decoding.
TEST(Linear, ProductsOfFewRowsMatchReference) {
  Benches benches = every_bench();
  for (const Layer& layer : {Layer{1, 8, 1},
                             {2, 40, 17},
                             {8, 256, 40},
                             {7, 1032, 16},
                             {1, 2056, 33},
                             {2, 8200, 33},
                             {9, 64, 16}}) {
    for (const DType result : {DType::kF32, DType::kBF16})
      expect_product(benches, GemmRole::kForward, layer, {DType::kBF16, DType::kBF16, result}, false);
  }
}

// Expects the same bits for a row that is computed alone and in products of up to eight rows.
void expect_rows_alike(const Layer& layer) {
  const Shapes s = shapes(GemmRole::kForward, layer);
  const Values x = random_values(s.a.elements(), 1), w = random_values(s.b.elements(), 2);
  for (const DeviceUnderTest& spec : devices_under_test()) {
    if (spec.emulated_warp == 0 && spec.plugin.empty()) continue;
    OperatorBench bench(spec);
    const auto rows = [&](std::int64_t first, std::int64_t count) {
      const Values some(x.begin() + first * layer.in, x.begin() + (first + count) * layer.in);
      const Gemm call{.role = GemmRole::kForward,
                      .a = bench.upload(some, DType::kBF16, {count, layer.in}),
                      .b = bench.upload(w, DType::kBF16, s.b),
                      .c = bench.empty(DType::kF32, {count, layer.out}),
                      .workspace = {}};
      bench.run(call);
      return bench.download(call.c);
    };
    const Values all = rows(0, 8);
    for (const std::int64_t row : {0, 3, 7})
      EXPECT_EQ(rows(row, 1), Values(all.begin() + row * layer.out, all.begin() + (row + 1) * layer.out));
  }
}

// One or two long rows use a different kernel (gpu_few_rows_ring.h) than eight rows.
TEST(Linear, OnAGpuARowDoesNotDependOnUpToSevenOthers) {
  expect_rows_alike({8, 1096, 50});
  expect_rows_alike({8, 8208, 34});
}

struct Around {
  std::int64_t rows, in, out;
  AroundProduct::End end;
  bool delta, bias;
  std::int64_t heads = 0, head_dim = 0;
  float offset = 0;
};

// Expects that a fused product has the same bits as its operators, run one after another.
void expect_steps(OperatorBench& bench, const Around& c) {
  SCOPED_TRACE(std::to_string(c.rows) + " x " + std::to_string(c.in) + " to " + std::to_string(c.out) +
               ", end " + std::to_string(static_cast<int>(c.end)));
  using End = AroundProduct::End;
  const Shape x_shape{c.rows, c.in}, y_shape{c.rows, c.out};
  const auto random = [&](std::uint64_t seed, Shape shape) {
    return bench.upload(random_values(shape.elements(), seed), DType::kBF16, shape);
  };
  const auto out = [&](Shape shape) { return bench.empty(DType::kBF16, shape); };
  const Shape result = c.end == End::kSwiglu ? Shape{c.rows, c.out / 2} : y_shape;
  Gemm call{.role = GemmRole::kForward,
            .a = random(1, x_shape),
            .b = random(2, {c.out, c.in}),
            .c = out(result),
            .around = {.norm = random(3, {c.in}), .eps = 1e-5F, .offset = c.offset, .end = c.end},
            .workspace = {}};
  ASSERT_TRUE(is_taken(bench.device(), call));
  AroundProduct& around = call.around;
  if (c.delta) around.delta = random(4, x_shape), around.sum = out(x_shape);
  if (c.bias) around.bias = random(5, {c.out});
  if (c.end == End::kRope) {
    constexpr std::int64_t kPositions = 40;
    Values positions;
    for (std::int64_t i = 0; i < c.rows; ++i)
      positions.push_back(static_cast<double>((i * 7 + 3) % kPositions));
    around.positions = bench.upload(positions, DType::kI32, {c.rows});
    around.table =
        bench.upload(random_values(kPositions * c.head_dim, 6), DType::kF32, {kPositions, c.head_dim});
    around.heads = c.heads, around.head_dim = c.head_dim;
  }
  bench.run(call);

  const Tensor sum = c.delta ? out(x_shape) : Tensor(), normed = out(x_shape), y = out(y_shape);
  bench.run(RmsNormForward{.x = call.a,
                           .delta = around.delta,
                           .weight = around.norm,
                           .sum = sum,
                           .y = normed,
                           .rstd = bench.empty(DType::kF32, {c.rows}),
                           .eps = around.eps,
                           .offset = around.offset});
  bench.run(Gemm{.role = GemmRole::kForward, .a = normed, .b = call.b, .c = y, .workspace = {}});
  if (c.bias) bench.run(AddBias{.x = y, .bias = around.bias, .y = y});
  Tensor expected = y;
  if (c.end == End::kRope) {
    bench.run(Rope{.x = y,
                   .y = y,
                   .positions = around.positions,
                   .table = around.table,
                   .heads = c.heads,
                   .head_dim = c.head_dim,
                   .rotary_dim = c.head_dim,
                   .inverse = false});
  } else if (c.end == End::kSwiglu) {
    expected = out(result);
    bench.run(SwigluForward{.gate_up = y, .out = expected});
  }
  EXPECT_EQ(bench.download(call.c), bench.download(expected));
  if (c.delta) {
    EXPECT_EQ(bench.bytes(around.sum), bench.bytes(sum));
  }
}

TEST(Linear, OnAGpuFusedProductsHaveTheBitsOfSeparateOperators) {
  using End = AroundProduct::End;
  for (const DeviceUnderTest& spec : devices_under_test()) {
    if (spec.emulated_warp == 0 && spec.plugin.empty()) continue;
    SCOPED_TRACE(spec.name());
    OperatorBench bench(spec);
    for (const Around& c : {Around{1, 2056, 3, End::kNone, false, false},
                            {2, 2312, 21, End::kNone, true, true},
                            {1, 4096, 24, End::kSwiglu, true, false},
                            {2, 2568, 90, End::kSwiglu, false, false},
                            {2, 2312, 21, End::kNone, true, false, 0, 0, 1.0F},
                            {2, 2184, 6 * 16, End::kRope, true, true, 4, 16},
                            {1, 2056, 5 * 6, End::kRope, false, false, 5, 6}})
      expect_steps(bench, c);
  }
}

// GPUs fuse the norm with products of one or two rows, if the rows fit into shared memory.
TEST(Linear, ProductsAreFusedWhereItIsFaster) {
  for (const DeviceUnderTest& spec : devices_under_test()) {
    SCOPED_TRACE(spec.name());
    OperatorBench bench(spec);
    const auto taken = [&](std::int64_t rows, std::int64_t in) {
      return is_taken(bench.device(), Gemm{.role = GemmRole::kForward,
                                           .a = Tensor(nullptr, DType::kBF16, {rows, in}),
                                           .b = Tensor(nullptr, DType::kBF16, {16, in}),
                                           .around = {.norm = Tensor(nullptr, DType::kBF16, {in})}});
    };
    const bool gpu = spec.emulated_warp > 0 || !spec.plugin.empty();
    EXPECT_EQ(taken(1, 4096), gpu);
    EXPECT_EQ(taken(2, 4096), gpu);
    EXPECT_FALSE(taken(3, 4096));
    EXPECT_FALSE(taken(1, 512));    // the bits of a row would depend on the number of rows
    EXPECT_FALSE(taken(2, 65536));  // the rows do not fit into shared memory
  }
}

// The product of an fp32 operand and 1 is exactly the operand. The value of the operand's lowest bit must be
// at least the smallest normal number of bf16.
TEST(Linear, Fp32OperandsKeepAllTheirDigits) {
  const Layer layer{40, 40, 19};
  const Shapes forward = shapes(GemmRole::kForward, layer);
  Values one_hot(static_cast<std::size_t>(layer.tokens * layer.in));
  for (std::int64_t t = 0; t < layer.tokens; ++t) one_hot[static_cast<std::size_t>(t * layer.in + t)] = 1;
  Values numbers = rounded(random_values(forward.b.elements(), 1), DType::kF32);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] *= std::ldexp(1.0, static_cast<int>(i % 190) - 90);
  numbers[0] = std::numeric_limits<float>::max();
  numbers[1] = -std::nextafter(1.0F, 2.0F);
  for (const DeviceUnderTest& spec : devices_under_test()) {
    SCOPED_TRACE(spec.name());
    OperatorBench bench(spec);
    const Tensor x = bench.upload(one_hot, DType::kBF16, forward.a);
    Gemm call{.role = GemmRole::kForward,
              .a = x,
              .b = bench.upload(numbers, DType::kF32, forward.b),
              .c = bench.empty(DType::kF32, forward.c),
              .workspace = {}};
    bench.run(call);
    const Values y = bench.download(call.c);  // [tokens, out]: the weight, transposed
    for (std::int64_t t = 0; t < layer.tokens; ++t) {
      for (std::int64_t o = 0; o < layer.out; ++o) {
        EXPECT_EQ(y[static_cast<std::size_t>(t * layer.out + o)],
                  numbers[static_cast<std::size_t>(o * layer.in + t)]);
      }
    }
    call = {.role = GemmRole::kWeightGradient,
            .a = bench.upload(numbers, DType::kF32, {layer.tokens, layer.out}),
            .b = x,
            .c = bench.empty(DType::kF32, forward.b),
            .workspace = {}};
    bench.run(call);
    const Values d_w = bench.download(call.c);  // [out, in]: d_y, transposed
    for (std::int64_t t = 0; t < layer.tokens; ++t) {
      for (std::int64_t o = 0; o < layer.out; ++o) {
        EXPECT_EQ(d_w[static_cast<std::size_t>(o * layer.in + t)],
                  numbers[static_cast<std::size_t>(t * layer.out + o)]);
      }
    }
  }
}

// A result is rounded once. The terms of its sum are exact to 2^-14. A few percent of the results are so
// close to the middle between two bf16 numbers that these results may be rounded up or down.
TEST(Linear, Bf16ResultsOfFp32OperandsAreRoundedOnce) {
  const Layer layer{130, 80, 64};
  const GemmRole role = GemmRole::kInputGradient;
  const Shapes s = shapes(role, layer);
  const Values a = rounded(random_values(s.a.elements(), 1), DType::kF32);
  const Values b = rounded(random_values(s.b.elements(), 2), DType::kF32);
  const Values exact = product(role, layer, a, b);
  for (const DeviceUnderTest& spec : devices_under_test()) {
    SCOPED_TRACE(spec.name());
    OperatorBench bench(spec);
    const Gemm call{.role = role,
                    .a = bench.upload(a, DType::kF32, s.a),
                    .b = bench.upload(b, DType::kF32, s.b),
                    .c = bench.empty(DType::kBF16, s.c),
                    .workspace = {}};
    bench.run(call);
    const Values d_x = bench.download(call.c);
    int differ = 0;
    for (std::size_t i = 0; i < exact.size(); ++i)
      differ += d_x[i] != rounded(exact[i], DType::kBF16) ? 1 : 0;
    EXPECT_LE(differ, static_cast<int>(exact.size()) / 25);
  }
}

TEST(Linear, NonFiniteOperandsGiveNonFiniteResults) {
  const Layer layer{40, 32, 16};
  for (const DeviceUnderTest& spec : devices_under_test()) {
    SCOPED_TRACE(spec.name());
    OperatorBench bench(spec);
    for (const GemmRole role : kRoles) {
      const Shapes s = shapes(role, layer);
      for (const double wrong : {double{INFINITY}, double{NAN}}) {
        for (const bool in_a : {false, true}) {
          Values a = random_values(s.a.elements(), 1), b = random_values(s.b.elements(), 2);
          (in_a ? a : b)[0] = wrong;
          const Gemm call{
              .role = role,
              .a = bench.upload(a, role == GemmRole::kForward ? DType::kBF16 : DType::kF32, s.a),
              .b = bench.upload(b, role == GemmRole::kWeightGradient ? DType::kBF16 : DType::kF32, s.b),
              .c = bench.empty(role == GemmRole::kInputGradient ? DType::kBF16 : DType::kF32, s.c),
              .workspace = {}};
          bench.run(call);
          EXPECT_FALSE(std::isfinite(bench.download(call.c)[0])) << static_cast<int>(role) << in_a << wrong;
        }
      }
    }
  }
}

TEST(Linear, ManyThreadsGiveTheSameBits) {
  const Layer layer{130, 96, 200};
  constexpr std::pair<DType, DType> kOperands[] = {{DType::kF32, DType::kF32},
                                                   {DType::kBF16, DType::kBF16},
                                                   {DType::kF32, DType::kBF16},
                                                   {DType::kBF16, DType::kF32}};
  for (const auto& [a, b] : kOperands) {
    for (const GemmRole role : kRoles) {
      std::vector<unsigned char> expected;
      for (const int threads : {1, 2, 3}) {
        OperatorBench bench({.threads = threads});
        const Shapes s = shapes(role, layer);
        const Gemm call{.role = role,
                        .a = bench.upload(random_values(s.a.elements(), 1), a, s.a),
                        .b = bench.upload(random_values(s.b.elements(), 2), b, s.b),
                        .c = bench.empty(DType::kF32, s.c),
                        .workspace = {}};
        bench.run(call);
        if (threads == 1) expected = bench.bytes(call.c);
        EXPECT_EQ(bench.bytes(call.c), expected) << threads << " threads";
      }
    }
  }
}

}  // namespace
}  // namespace primus::turbo::test
