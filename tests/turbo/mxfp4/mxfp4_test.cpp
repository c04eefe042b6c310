#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "turbo/mxfp4/mxfp4_reference.h"
#include "turbo/operator_test.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::test {
namespace {

using Blocks = RoundMxfp4::Blocks;
constexpr Blocks kAll[] = {Blocks::kRows, Blocks::kColumns, Blocks::kTiles};

class Mxfp4Test : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, Mxfp4Test, ::testing::ValuesIn(devices_under_test()));

// ---- The format, by tables ----------------------------------------------------------------------

// Compares bit by bit, except for the payload of NaNs.
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

TEST_P(Mxfp4Test, NumbersEqualTheFormats) {
  OperatorBench bench(GetParam());
  for (const Shape& shape : {Shape{1, 1}, {32, 32}, {33, 70}, {96, 257}, {64, 320}, {3, 40, 72}}) {
    for (const DType type : {DType::kF32, DType::kBF16})
      expect_numbers(bench, rounded(random_values(shape.elements(), 3, 0.02), type), type, shape);
  }
}

// Tests all sixteen codes, every tie, and the floats next to a tie, with scales from the smallest to the
// largest.
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
    // There are two blocks. Each begins with 6, which determines the scale.
    of_scale.insert(of_scale.begin(), 6);
    of_scale.insert(of_scale.begin() + kMxBlock, 6);
    of_scale.resize(2 * kMxBlock);
    // With the smallest scales, floats next to a tie are not exact in fp32.
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

// Tests largest magnitudes just below and just above the values at which the scale doubles or an element
// saturates.
TEST_P(Mxfp4Test, TheLargestMagnitudeDecidesTheScale) {
  OperatorBench bench(GetParam());
  for (const float largest : {3.4999998F, 3.5F, 3.75F, 4.0F, 5.0F, 6.0F, 6.5F, 6.9999995F, 7.0F, 7.5F}) {
    Values x = rounded(random_values(kMxBlock, 7), DType::kF32);
    for (double& value : x) value = std::clamp(value, -3.0, 3.0);
    x[17] = -static_cast<double>(largest);
    expect_numbers(bench, x, DType::kF32, {1, kMxBlock});
  }
}

TEST_P(Mxfp4Test, HandlesZerosTinyHugeInfiniteAndNan) {
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
    x[35 * 64 + 40] = bad;  // affects only its own block
    expect_numbers(bench, x, DType::kBF16, shape);
  }
}

// ---- Hadamard's matrix, groups ------------------------------------------------------------------

TEST_P(Mxfp4Test, OnlyCompleteRunsOfSixteenRowsAreTransformed) {
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

TEST_P(Mxfp4Test, GroupsOfPickedRowsHaveTheirOwnBlocks) {
  OperatorBench bench(GetParam());
  constexpr std::int64_t kTokens = 50, kRows = 130, kCols = 40;
  const Values offsets = {0, 0, 33, 34, 34, 99, 120};  // six groups; the last ten rows belong to no group
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

// Every block contains a 6, so that its scale is 1.
TEST_P(Mxfp4Test, StochasticRoundingKeepsTheMean) {
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
      // Five standard deviations of the mean of `count` draws.
      const double deviation = std::sqrt((exact - below) * (above - exact) / static_cast<double>(count));
      EXPECT_NEAR(sum / static_cast<double>(count), exact, 5 * deviation + 1e-6) << value;
    }
  }
}

// Rows, and parts of fused columns, that are rounded separately get the same random bits as in the complete
// matrix.
TEST_P(Mxfp4Test, RandomBitsDependOnTokenColumnStepAndName) {
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

}  // namespace
}  // namespace primus::turbo::test
