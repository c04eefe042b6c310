#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "turbo/linear_layer.h"
#include "turbo/mxfp4/mxfp4_product.h"
#include "turbo/operator_test.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::test {
namespace {

using Blocks = RoundMxfp4::Blocks;
constexpr Blocks kAll[] = {Blocks::kRows, Blocks::kColumns, Blocks::kTiles};

class Mxfp4Test : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, Mxfp4Test, ::testing::ValuesIn(devices_under_test()));

// ---- The format, by tables ----------------------------------------------------------------------

// Codes 0 to 7; with 8 more, their negatives.
constexpr std::array<double, 8> kNumbers = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

double nearest(double x) {
  const double magnitude = std::abs(x);
  std::size_t best = 0;
  for (std::size_t code = 1; code < kNumbers.size(); ++code) {
    const double here = std::abs(kNumbers[code] - magnitude), before = std::abs(kNumbers[best] - magnitude);
    if (here < before || (here == before && code % 2 == 0)) best = code;
  }
  return std::copysign(kNumbers[best], x);
}

// The scale of a block; NaN where one of its numbers is not finite.
double scale_of(const Values& block) {
  double largest = 0;
  for (const double x : block) {
    if (!std::isfinite(x)) return NAN;
    largest = std::max(largest, std::abs(x));
  }
  if (largest == 0) return std::ldexp(1.0, -127);
  int exponent = 0;  // largest = fraction * 2^exponent, fraction in [1, 2)
  const double fraction = 2 * std::frexp(largest, &exponent);
  --exponent;
  // fp32 numbers below the least normal one have no exponent of their own.
  if (exponent >= -126 && fraction >= 1.75) ++exponent;
  return std::ldexp(1.0, std::clamp(exponent - 2, -127, 125));
}

// Of matrices below each other, each `of_matrix` rows.
Values expected_numbers(const Values& x, std::int64_t cols, Blocks blocks, std::int64_t of_matrix) {
  const auto rows = static_cast<std::int64_t>(x.size()) / cols;
  const std::int64_t height = blocks == Blocks::kRows ? 1 : kMxBlock,
                     width = blocks == Blocks::kColumns ? 1 : kMxBlock;
  Values out(x.size());
  for (std::int64_t matrix = 0; matrix < rows; matrix += of_matrix) {
    for (std::int64_t r = matrix; r < matrix + of_matrix; r += height) {
      for (std::int64_t c = 0; c < cols; c += width) {
        std::vector<std::size_t> places;
        for (std::int64_t i = r; i < std::min(r + height, matrix + of_matrix); ++i)
          for (std::int64_t j = c; j < std::min(c + width, cols); ++j)
            places.push_back(static_cast<std::size_t>(i * cols + j));
        Values block;
        for (const std::size_t place : places) block.push_back(x[place]);
        const double scale = scale_of(block);
        for (const std::size_t place : places) out[place] = nearest(x[place] / scale) * scale;
      }
    }
  }
  return out;
}

// Bit for bit, but for what a NaN says.
void expect_same(const Values& actual, const Values& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(actual[i])) continue;
    ASSERT_EQ(actual[i], expected[i]) << what << ", element " << i;
    ASSERT_EQ(std::signbit(actual[i]), std::signbit(expected[i])) << what << ", element " << i;
  }
}

Values round_on(OperatorBench& bench, const Values& x, DType type, const Shape& shape, Blocks blocks) {
  const RoundMxfp4 call{.x = bench.upload(x, type, shape), .out = bench.empty(type, shape), .blocks = blocks};
  bench.run(call);
  return bench.download(call.out);
}

void expect_numbers(OperatorBench& bench, const Values& x, DType type, const Shape& shape) {
  const std::int64_t cols = shape[shape.rank() - 1];
  for (const Blocks blocks : kAll) {
    if (shape.rank() == 3 && blocks != Blocks::kTiles) continue;
    expect_same(round_on(bench, x, type, shape, blocks),
                expected_numbers(x, cols, blocks, shape[shape.rank() - 2]),
                shape.to_string() + " blocks " + std::to_string(static_cast<int>(blocks)));
  }
}

TEST_P(Mxfp4Test, NumbersAreThoseOfTheFormat) {
  OperatorBench bench(GetParam());
  for (const Shape& shape : {Shape{1, 1}, {32, 32}, {33, 70}, {96, 257}, {64, 320}, {3, 40, 72}}) {
    for (const DType type : {DType::kF32, DType::kBF16})
      expect_numbers(bench, rounded(random_values(shape.elements(), 3, 0.02), type), type, shape);
  }
}

// All sixteen codes, every tie, and what is next to a tie, under scales from the least to the largest.
TEST_P(Mxfp4Test, EveryCodeAndEveryTieIsRoundedAsTheFormatSays) {
  OperatorBench bench(GetParam());
  Values x;
  for (const int exponent : {-127, -126, -100, 0, 3, 124, 125}) {
    Values of_scale;
    for (std::size_t code = 0; code < kNumbers.size(); ++code) {
      for (const double sign : {1.0, -1.0}) {
        of_scale.push_back(sign * kNumbers[code]);
        if (code + 1 == kNumbers.size()) continue;
        const auto middle = static_cast<float>((kNumbers[code] + kNumbers[code + 1]) / 2);
        for (const float next : {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, 9.0F)})
          of_scale.push_back(sign * static_cast<double>(next));
      }
    }
    // Two blocks, each with 6 in front.
    of_scale.insert(of_scale.begin(), 6);
    of_scale.insert(of_scale.begin() + kMxBlock, 6);
    of_scale.resize(2 * kMxBlock);
    // Of the least scales the neighbours of ties are no numbers of fp32.
    for (const double value : of_scale) x.push_back(rounded(std::ldexp(value, exponent), DType::kF32));
  }
  const auto rows = static_cast<std::int64_t>(x.size()) / kMxBlock;
  expect_same(round_on(bench, x, DType::kF32, {rows, kMxBlock}, Blocks::kRows),
              expected_numbers(x, kMxBlock, Blocks::kRows, rows), "rows");
  Values turned(x.size());
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < kMxBlock; ++c)
      turned[static_cast<std::size_t>(c * rows + r)] = x[static_cast<std::size_t>(r * kMxBlock + c)];
  expect_same(round_on(bench, turned, DType::kF32, {kMxBlock, rows}, Blocks::kColumns),
              expected_numbers(turned, rows, Blocks::kColumns, kMxBlock), "columns");
}

// The largest magnitude, just below and above where the scale doubles and where a number saturates.
TEST_P(Mxfp4Test, TheLargestMagnitudeDecidesTheScale) {
  OperatorBench bench(GetParam());
  for (const float largest : {3.4999998F, 3.5F, 3.75F, 4.0F, 5.0F, 6.0F, 6.5F, 6.9999995F, 7.0F, 7.5F}) {
    Values x = rounded(random_values(kMxBlock, 7), DType::kF32);
    for (double& value : x) value = std::clamp(value, -3.0, 3.0);
    x[17] = -static_cast<double>(largest);
    expect_numbers(bench, x, DType::kF32, {1, kMxBlock});
  }
}

TEST_P(Mxfp4Test, ZerosTinyHugeInfiniteAndNoNumbers) {
  OperatorBench bench(GetParam());
  const Shape shape{40, 64};
  Values zeros(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < zeros.size(); i += 3) zeros[i] = -0.0;
  expect_numbers(bench, zeros, DType::kBF16, shape);
  for (const double scale : {1e-37, 3e-39, 1e-41, 1e-45, 1e37, 8e37})
    expect_numbers(bench, rounded(random_values(shape.elements(), 1, scale), DType::kF32), DType::kF32,
                   shape);
  Values top(static_cast<std::size_t>(shape.elements()),
             static_cast<double>(std::numeric_limits<float>::max()));
  top[5] = -1e38;
  expect_numbers(bench, rounded(top, DType::kF32), DType::kF32, shape);
  for (const double bad : {static_cast<double>(INFINITY), static_cast<double>(-INFINITY), std::nan("")}) {
    Values x = rounded(random_values(shape.elements(), 1), DType::kBF16);
    x[35 * 64 + 40] = bad;  // its block is lost, and no other
    expect_numbers(bench, x, DType::kBF16, shape);
  }
}

// ---- Hadamard's matrix, groups ------------------------------------------------------------------

// Each whole run of 16 rows times H/4, with H by Sylvester's rule.
Values transformed(const Values& x, std::int64_t cols, std::int64_t begin, std::int64_t end) {
  Values out = x;
  for (std::int64_t block = begin; block < end; block += kMxBlock) {
    for (std::int64_t first = block; first + 16 <= std::min(block + kMxBlock, end); first += 16) {
      for (std::int64_t c = 0; c < cols; ++c) {
        for (unsigned r = 0; r < 16; ++r) {
          double sum = 0;
          for (unsigned k = 0; k < 16; ++k)
            sum += (std::popcount(r & k) % 2 ? -1 : 1) * x[static_cast<std::size_t>((first + k) * cols + c)];
          out[static_cast<std::size_t>((first + r) * cols + c)] = sum / 4;
        }
      }
    }
  }
  return out;
}

// Small integers, whose sums are exact.
Values integers(std::int64_t n, std::uint64_t seed) {
  Values x = random_values(n, seed, 40);
  for (double& value : x) value = std::round(value);
  return x;
}

TEST_P(Mxfp4Test, RunsOfSixteenRowsAreTransformedAndTheRestIsNot) {
  OperatorBench bench(GetParam());
  for (const std::int64_t rows : {15, 16, 31, 32, 63, 100}) {
    const std::int64_t cols = 70;
    const Values x = integers(rows * cols, 2);
    const RoundMxfp4 call{.x = bench.upload(x, DType::kF32, {rows, cols}),
                          .out = bench.empty(DType::kF32, {rows, cols}),
                          .blocks = Blocks::kColumns,
                          .hadamard = true};
    bench.run(call);
    expect_same(bench.download(call.out),
                expected_numbers(transformed(x, cols, 0, rows), cols, Blocks::kColumns, rows), "transformed");
  }
}

TEST_P(Mxfp4Test, GroupsOfPickedRowsHaveBlocksOfTheirOwn) {
  OperatorBench bench(GetParam());
  constexpr std::int64_t kTokens = 50, kRows = 130, kCols = 40;
  const Values offsets = {0, 0, 33, 34, 34, 99, 120};  // of six groups; ten rows are nobody's
  const Values x = integers(kTokens * kCols, 5);
  Values picks;
  for (std::int64_t r = 0; r < kRows; ++r) picks.push_back(static_cast<double>(r * 7 % kTokens));
  const RoundMxfp4 call{.x = bench.upload(x, DType::kF32, {kTokens, kCols}),
                        .out = bench.empty(DType::kF32, {kRows, kCols}),
                        .blocks = Blocks::kColumns,
                        .hadamard = true,
                        .offsets = bench.upload(offsets, DType::kI32, {7}),
                        .picks = bench.upload(picks, DType::kI32, {kRows})};
  bench.run(call);
  Values expected(static_cast<std::size_t>(kRows * kCols), NAN);
  for (std::size_t g = 0; g + 1 < offsets.size(); ++g) {
    const auto begin = static_cast<std::int64_t>(offsets[g]), end = static_cast<std::int64_t>(offsets[g + 1]);
    if (begin == end) continue;
    Values rows;
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t c = 0; c < kCols; ++c)
        rows.push_back(x[static_cast<std::size_t>(r * 7 % kTokens * kCols + c)]);
    rows = expected_numbers(transformed(rows, kCols, 0, end - begin), kCols, Blocks::kColumns, end - begin);
    std::copy(rows.begin(), rows.end(), expected.begin() + begin * kCols);
  }
  expect_same(bench.download(call.out), expected, "groups");
}

// ---- At random ----------------------------------------------------------------------------------

Tensor scalars_of(OperatorBench& bench, double step) {
  return bench.upload({step, 0, 0, 0, 0}, DType::kF64, {kStepScalars});
}

Values counted(std::int64_t n, double first = 0) {
  Values values(static_cast<std::size_t>(n));
  std::iota(values.begin(), values.end(), first);
  return values;
}

// With 6 in each block, so that scales are 1.
TEST_P(Mxfp4Test, RoundingAtRandomKeepsTheMean) {
  OperatorBench bench(GetParam());
  constexpr std::int64_t kRows = 128, kCols = 256;
  for (const Blocks blocks : {Blocks::kRows, Blocks::kColumns}) {
    for (const double value : {0.1, 0.25, 1.2, 1.75, 2.9, 4.5, -5.5}) {
      const double exact = rounded(value, DType::kF32);
      Values x(kRows * kCols, exact);
      for (std::int64_t r = 0; r < kRows; ++r)
        for (std::int64_t c = 0; c < kCols; ++c)
          if ((blocks == Blocks::kRows ? c : r) % kMxBlock == 0)
            x[static_cast<std::size_t>(r * kCols + c)] = 6;
      const RoundMxfp4 call{.x = bench.upload(x, DType::kF32, {kRows, kCols}),
                            .out = bench.empty(DType::kF32, {kRows, kCols}),
                            .blocks = blocks,
                            .random = {.tokens = bench.upload(counted(kRows), DType::kI32, {kRows}),
                                       .scalars = scalars_of(bench, 3),
                                       .stream = 77,
                                       .width = kCols}};
      bench.run(call);
      const Values numbers = bench.download(call.out);
      double sum = 0, below = -6, above = 6;
      std::size_t count = 0;
      for (const double sign : {-1.0, 1.0}) {
        for (const double number : kNumbers) {
          if (sign * number <= exact) below = std::max(below, sign * number);
          if (sign * number >= exact) above = std::min(above, sign * number);
        }
      }
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        if (x[i] == 6) {
          ASSERT_EQ(numbers[i], 6);
          continue;
        }
        ASSERT_TRUE(numbers[i] == below || numbers[i] == above) << value << " became " << numbers[i];
        sum += numbers[i];
        ++count;
      }
      // Five standard deviations of the mean of as many draws.
      const double deviation = std::sqrt((exact - below) * (above - exact) / static_cast<double>(count));
      EXPECT_NEAR(sum / static_cast<double>(count), exact, 5 * deviation + 1e-6) << value;
    }
  }
}

// Rows, and columns of fused parts, that are computed elsewhere.
TEST_P(Mxfp4Test, RandomBitsAreThoseOfTheTokenTheColumnTheStepAndTheName) {
  OperatorBench bench(GetParam());
  constexpr std::int64_t kRows = 64, kCols = 128;
  const Values x = rounded(random_values(kRows * kCols, 4), DType::kBF16);
  const auto run = [&](const Values& part, std::int64_t rows, std::int64_t cols, double token, double step,
                       std::uint64_t stream, const Mxfp4Random::Runs& runs, int run_count) {
    const RoundMxfp4 call{.x = bench.upload(part, DType::kBF16, {rows, cols}),
                          .out = bench.empty(DType::kBF16, {rows, cols}),
                          .random = {.tokens = bench.upload(counted(rows, token), DType::kI32, {rows}),
                                     .scalars = scalars_of(bench, step),
                                     .stream = stream,
                                     .width = kCols,
                                     .run_count = run_count,
                                     .runs = runs}};
    bench.run(call);
    return bench.download(call.out);
  };
  const auto part = [&](std::int64_t rows, std::int64_t row, const std::vector<std::int64_t>& columns,
                        const Values& of) {
    Values out;
    for (std::int64_t r = row; r < row + rows; ++r)
      for (const std::int64_t first : columns)
        for (std::int64_t c = first; c < first + 32; ++c)
          out.push_back(of[static_cast<std::size_t>(r * kCols + c)]);
    return out;
  };
  const Values whole = run(x, kRows, kCols, 1000, 5, 9, {}, 1);
  EXPECT_EQ(run(x, kRows, kCols, 1000, 5, 9, {}, 1), whole);
  EXPECT_EQ(run(part(24, 40, {32, 96}, x), 24, 64, 1040, 5, 9, {{{0, 32}, {32, 96}}}, 2),
            part(24, 40, {32, 96}, whole));
  EXPECT_NE(run(x, kRows, kCols, 1000, 6, 9, {}, 1), whole);
  EXPECT_NE(run(x, kRows, kCols, 1000, 5, 8, {}, 1), whole);
  EXPECT_NE(run(x, kRows, kCols, 1001, 5, 9, {}, 1), whole);
}

// ---- Products -----------------------------------------------------------------------------------

// The operands that products are of.
Values operand(const Values& x, std::int64_t cols, bool weight, bool weight_gradient) {
  const auto rows = static_cast<std::int64_t>(x.size()) / cols;
  if (weight_gradient) return expected_numbers(transformed(x, cols, 0, rows), cols, Blocks::kColumns, rows);
  return expected_numbers(x, cols, weight ? Blocks::kTiles : Blocks::kRows, rows);
}

TEST_P(Mxfp4Test, ProductsAreThoseOfTheNumbers) {
  OperatorBench bench(GetParam());
  for (const Layer& layer : {Layer{48, 64, 96}, {50, 72, 40}}) {
    for (const GemmRole role : kRoles) {
      const Shapes s = shapes(role, layer);
      const bool gradient = role == GemmRole::kWeightGradient;
      const Values a = integers(s.a.elements(), 1), b = integers(s.b.elements(), 2);
      const Values expected =
          product(role, layer, operand(a, s.a[1], false, gradient), operand(b, s.b[1], true, gradient));
      for (const bool accumulate : {false, true}) {
        const Mxfp4Linear call{.product = {.role = role,
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

// The transform is the same in both operands, so all that is lost is what rounding loses.
TEST_P(Mxfp4Test, ProductsAreNearThoseOfTheOperands) {
  OperatorBench bench(GetParam());
  const Layer layer{96, 64, 64};
  for (const GemmRole role : kRoles) {
    const Shapes s = shapes(role, layer);
    const Values a = rounded(random_values(s.a.elements(), 1), DType::kBF16),
                 b = rounded(random_values(s.b.elements(), 2), DType::kBF16);
    const Mxfp4Linear call{.product = {.role = role,
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
    // Each operand is off by some 11 % of its own size, independently.
    EXPECT_LE(std::sqrt(error / size), 0.2);
    EXPECT_GE(std::sqrt(error / size), 0.1);
  }
}

TEST_P(Mxfp4Test, ExpertsMultiplyAsLayersOfTheirRows) {
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
  const Mxfp4Grouped calls[] = {{{.role = GemmRole::kForward,
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
  for (const Mxfp4Grouped& call : calls) {
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
    expected.resize(static_cast<std::size_t>(call.product.c.elements()));  // nobody's rows are zero
    EXPECT_LE(normalised_error(bench.download(call.product.c), expected), 1e-5);
  }
}

}  // namespace
}  // namespace primus::turbo::test
