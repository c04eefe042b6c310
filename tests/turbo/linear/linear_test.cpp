#include "turbo/linear/linear.h"

#include <gtest/gtest.h>

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

struct Layer {
  std::int64_t tokens, in, out;
};

std::vector<Layer> layers() { return {{1, 1, 1}, {5, 12, 7}, {33, 64, 48}, {130, 80, 200}, {1, 300, 65}}; }

// What the role says, by the definition of a product.
Values product(GemmRole role, const Layer& layer, const Values& a, const Values& b) {
  const auto [tokens, in, out] = layer;
  const auto sum = [](std::int64_t rows, std::int64_t cols, std::int64_t inner, auto term) {
    Values c;
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < cols; ++j) {
        double total = 0;
        for (std::int64_t p = 0; p < inner; ++p) total += term(i, j, p);
        c.push_back(total);
      }
    }
    return c;
  };
  const auto at = [](const Values& x, std::int64_t cols, std::int64_t i, std::int64_t j) {
    return x[static_cast<std::size_t>(i * cols + j)];
  };
  switch (role) {
    case GemmRole::kForward:
      return sum(tokens, out, in, [&](auto t, auto o, auto i) { return at(a, in, t, i) * at(b, in, o, i); });
    case GemmRole::kInputGradient:
      return sum(tokens, in, out, [&](auto t, auto i, auto o) { return at(a, out, t, o) * at(b, in, o, i); });
    case GemmRole::kWeightGradient:
      return sum(out, in, tokens, [&](auto o, auto i, auto t) { return at(a, out, t, o) * at(b, in, t, i); });
  }
  return {};
}

struct Shapes {
  Shape a, b, c;
};

Shapes shapes(GemmRole role, const Layer& l) {
  switch (role) {
    case GemmRole::kForward:
      return {{l.tokens, l.in}, {l.out, l.in}, {l.tokens, l.out}};
    case GemmRole::kInputGradient:
      return {{l.tokens, l.out}, {l.out, l.in}, {l.tokens, l.in}};
    case GemmRole::kWeightGradient:
      return {{l.tokens, l.out}, {l.tokens, l.in}, {l.out, l.in}};
  }
  return {};
}

constexpr GemmRole kRoles[] = {GemmRole::kForward, GemmRole::kInputGradient, GemmRole::kWeightGradient};

void expect_product(OperatorBench& bench, GemmRole role, const Layer& layer, DType operands, DType result,
                    bool accumulate) {
  SCOPED_TRACE("role " + std::to_string(static_cast<int>(role)) + " tokens " + std::to_string(layer.tokens) +
               " " + std::string(name_of(operands)) + " to " + std::string(name_of(result)) +
               (accumulate ? " +=" : ""));
  const Shapes s = shapes(role, layer);
  const Values a = rounded(random_values(s.a.elements(), 1), operands);
  const Values b = rounded(random_values(s.b.elements(), 2), operands);
  const Values before = rounded(random_values(s.c.elements(), 3), result);
  Values expected = product(role, layer, a, b);
  const Gemm call{.role = role,
                  .a = bench.upload(a, operands, s.a),
                  .b = bench.upload(b, operands, s.b),
                  .c = accumulate ? bench.upload(before, result, s.c) : bench.empty(result, s.c),
                  .accumulate = accumulate,
                  .workspace = {}};
  if (accumulate) {
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += before[i];
  }
  bench.run(call);
  EXPECT_LE(normalised_error(bench.download(call.c), expected), rounding_error(result) + 2e-6);
  EXPECT_EQ(call.flops(), 2.0 * static_cast<double>(layer.tokens * layer.in * layer.out));
}

TEST(Linear, RolesMatchReference) {
  for (const DeviceUnderTest& spec : devices_under_test()) {
    SCOPED_TRACE(spec.name());
    OperatorBench bench(spec);
    for (const Layer& layer : layers()) {
      for (const GemmRole role : kRoles) {
        for (const bool accumulate : {false, true}) {
          expect_product(bench, role, layer, DType::kF32, DType::kF32, accumulate);
          expect_product(bench, role, layer, DType::kBF16, DType::kF32, accumulate);
          if (role != GemmRole::kWeightGradient) {
            expect_product(bench, role, layer, DType::kBF16, DType::kBF16, accumulate);
          }
        }
      }
    }
  }
}

TEST(Linear, ManyThreadsGiveTheSameBits) {
  const Layer layer{130, 96, 200};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const GemmRole role : kRoles) {
      std::vector<unsigned char> expected;
      for (const int threads : {1, 2, 3}) {
        OperatorBench bench({.threads = threads});
        const Shapes s = shapes(role, layer);
        const Gemm call{.role = role,
                        .a = bench.upload(random_values(s.a.elements(), 1), dtype, s.a),
                        .b = bench.upload(random_values(s.b.elements(), 2), dtype, s.b),
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
