// Tests that MXFP4 products equal products of the rounded operands.
#include "engine/operators/mxfp4_products.h"

#include <gtest/gtest.h>

#include <cmath>

#include "turbo/linear_layer.h"
#include "turbo/mxfp4/mxfp4_reference.h"
#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

using Blocks = RoundMxfp4::Blocks;

class Mxfp4ProductsTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, Mxfp4ProductsTest, ::testing::ValuesIn(devices_under_test()));

// Returns the rounded operand of a product.
Values operand(const Values& x, std::int64_t cols, bool weight, bool weight_gradient) {
  const auto rows = static_cast<std::int64_t>(x.size()) / cols;
  if (weight_gradient) return expected_numbers(transformed(x, cols, 0, rows), cols, Blocks::kColumns, rows);
  return expected_numbers(x, cols, weight ? Blocks::kTiles : Blocks::kRows, rows);
}

TEST_P(Mxfp4ProductsTest, ProductsEqualProductsOfTheRoundedNumbers) {
  OperatorBench bench(GetParam());
  for (const Layer& layer : {Layer{48, 64, 96}, {50, 72, 40}}) {
    for (const GemmRole role : kRoles) {
      const Shapes s = shapes(role, layer);
      const bool gradient = role == GemmRole::kWeightGradient;
      const Values a = integers(s.a.elements(), 1), b = integers(s.b.elements(), 2);
      const Values expected =
          product(role, layer, operand(a, s.a[1], false, gradient), operand(b, s.b[1], true, gradient));
      for (const bool accumulate : {false, true}) {
        const engine::Mxfp4Linear call{
            .product = {.role = role,
                        .a = bench.upload(a, DType::kBF16, s.a),
                        .b = bench.upload(b, DType::kBF16, s.b),
                        .c = bench.upload(Values(expected.size(), 2), DType::kF32, s.c),
                        .accumulate = accumulate}};
        bench.run(call);
        Values sum = expected;
        for (double& value : sum) value += accumulate ? 2 : 0;
        EXPECT_LE(normalised_error(bench.download(call.product.c), sum), 1e-5);
      }
    }
  }
}

// Both operands have the same transform, so it cancels and only rounding changes the product.
TEST_P(Mxfp4ProductsTest, ProductsAreNearUnroundedProducts) {
  OperatorBench bench(GetParam());
  const Layer layer{96, 64, 64};
  for (const GemmRole role : kRoles) {
    const Shapes s = shapes(role, layer);
    const Values a = rounded(random_values(s.a.elements(), 1), DType::kBF16),
                 b = rounded(random_values(s.b.elements(), 2), DType::kBF16);
    const engine::Mxfp4Linear call{.product = {.role = role,
                                               .a = bench.upload(a, DType::kBF16, s.a),
                                               .b = bench.upload(b, DType::kBF16, s.b),
                                               .c = bench.empty(DType::kF32, s.c)}};
    bench.run(call);
    const Values exact = product(role, layer, a, b), actual = bench.download(call.product.c);
    double error = 0, size = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      error += (actual[i] - exact[i]) * (actual[i] - exact[i]);
      size += exact[i] * exact[i];
    }
    // Each operand has an independent relative error of about 11 %.
    EXPECT_LE(std::sqrt(error / size), 0.2);
    EXPECT_GE(std::sqrt(error / size), 0.1);
  }
}

// A grouped product equals a separate product per expert.
TEST_P(Mxfp4ProductsTest, ExpertsEqualLinearLayersOfTheirRows) {
  OperatorBench bench(GetParam());
  constexpr std::int64_t kExperts = 3, kTokens = 40, kRows = 90, kIn = 40, kOut = 72;
  const Values offsets = {0, 37, 37, 80};
  Values picks;
  for (std::int64_t r = 0; r < kRows; ++r) picks.push_back(static_cast<double>(r * 3 % kTokens));
  const Tensor where = bench.upload(offsets, DType::kI32, {kExperts + 1}),
               picked = bench.upload(picks, DType::kI32, {kRows});
  const Values x = integers(kTokens * kIn, 1), weights = integers(kExperts * kOut * kIn, 2),
               d_y = integers(kRows * kOut, 3);
  const Tensor tokens = bench.upload(x, DType::kBF16, {kTokens, kIn}),
               matrices = bench.upload(weights, DType::kBF16, {kExperts, kOut, kIn}),
               gradients = bench.upload(d_y, DType::kBF16, {kRows, kOut});
  const auto rows_of = [&](const Values& of, std::int64_t cols, std::size_t expert, bool pick) {
    Values out;
    for (auto r = static_cast<std::int64_t>(offsets[expert]);
         r < static_cast<std::int64_t>(offsets[expert + 1]); ++r)
      for (std::int64_t c = 0; c < cols; ++c)
        out.push_back(of[static_cast<std::size_t>((pick ? r * 3 % kTokens : r) * cols + c)]);
    return out;
  };
  const engine::Mxfp4Grouped calls[] = {{{.role = GemmRole::kForward,
                                          .a = tokens,
                                          .b = matrices,
                                          .c = bench.empty(DType::kF32, {kRows, kOut}),
                                          .offsets = where,
                                          .a_rows = picked}},
                                        {{.role = GemmRole::kInputGradient,
                                          .a = gradients,
                                          .b = matrices,
                                          .c = bench.empty(DType::kF32, {kRows, kIn}),
                                          .offsets = where}},
                                        {{.role = GemmRole::kWeightGradient,
                                          .a = gradients,
                                          .b = tokens,
                                          .c = bench.empty(DType::kF32, {kExperts, kOut, kIn}),
                                          .offsets = where,
                                          .b_rows = picked}}};
  for (const engine::Mxfp4Grouped& call : calls) {
    bench.run(call);
    const GemmRole role = call.product.role;
    const bool gradient = role == GemmRole::kWeightGradient;
    Values expected;
    for (std::size_t e = 0; e < kExperts; ++e) {
      const auto count = static_cast<std::int64_t>(offsets[e + 1] - offsets[e]);
      const Values own(weights.begin() + static_cast<std::int64_t>(e) * kOut * kIn,
                       weights.begin() + static_cast<std::int64_t>(e + 1) * kOut * kIn);
      const Values rows = rows_of(x, kIn, e, true), d_rows = rows_of(d_y, kOut, e, false);
      const Values& a = role == GemmRole::kForward ? rows : d_rows;
      const Values& b = gradient ? rows : own;
      const Values c = count == 0
                           ? Values(gradient ? kOut * kIn : 0)
                           : product(role, {count, kIn, kOut},
                                     operand(a, role == GemmRole::kForward ? kIn : kOut, false, gradient),
                                     operand(b, kIn, true, gradient));
      expected.insert(expected.end(), c.begin(), c.end());
    }
    Values found = bench.download(call.product.c);
    found.resize(expected.size());  // rows of no expert are undefined
    EXPECT_LE(normalised_error(found, expected), 1e-5);
  }
}

}  // namespace
}  // namespace primus::turbo::test
