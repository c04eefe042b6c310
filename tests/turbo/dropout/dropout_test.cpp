#include "turbo/dropout/dropout.h"

#include "turbo/operator_test.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::test {
namespace {

class DropoutTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, DropoutTest, ::testing::ValuesIn(devices_under_test()));

constexpr std::uint64_t kSeed = 7, kStream = random_stream_id("layers.3.attention.qkv.lora_A");

// Returns whether the mask keeps the element of a token in this column of the complete matrix.
bool kept(double rate, std::int64_t step, std::int32_t token, std::int64_t column,
          std::uint64_t stream = kStream) {
  const RandomStream draws(kSeed ^ stream, RandomPurpose::kDropout, static_cast<std::uint32_t>(step),
                           static_cast<std::uint32_t>(token));
  return static_cast<double>(draws.uniform(static_cast<std::uint64_t>(column))) >=
         static_cast<double>(static_cast<float>(rate));
}

class Bench : public OperatorBench {
 public:
  using OperatorBench::OperatorBench;
  Tensor step(std::int64_t step) {
    return upload({static_cast<double>(step), 0, 0, 0, 0}, DType::kF64, {kStepScalars});
  }
  Tensor tokens(const std::vector<std::int32_t>& numbers) {
    return upload(Values(numbers.begin(), numbers.end()), DType::kI32,
                  {static_cast<std::int64_t>(numbers.size())});
  }
  Values run(const Dropout& call) {
    OperatorBench::run(call);
    return download(call.out);
  }
};

const std::vector<std::int32_t> kTokens{4, 5, 96, 97, 98, 2000000000, 0};

// Compares with a mask that is computed element by element. The backward pass is the same function, because a
// diagonal matrix equals its transpose. Some widths are not multiples of the number of elements per thread.
TEST_P(DropoutTest, EqualsMultiplicationByTheMask) {
  Bench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t cols : {1, 29, 64, 515}) {
      for (const float rate : {0.1F, 0.5F, 0.97F}) {
        const auto rows = static_cast<std::int64_t>(kTokens.size());
        const Values x = rounded(random_values(rows * cols, 3), dtype);
        Values expected;
        for (std::int64_t i = 0; i < rows * cols; ++i) {
          const bool keep =
              kept(static_cast<double>(rate), 12, kTokens[static_cast<std::size_t>(i / cols)], i % cols);
          expected.push_back(keep ? x[static_cast<std::size_t>(i)] / (1 - static_cast<double>(rate)) : 0);
        }
        const Tensor apart = bench.empty(dtype, {rows, cols});
        const Tensor in_place = bench.upload(x, dtype, {rows, cols});
        for (const Tensor& out : {apart, in_place}) {
          const Values got = bench.run({.x = in_place,
                                        .out = out,
                                        .tokens = bench.tokens(kTokens),
                                        .scalars = bench.step(12),
                                        .seed = kSeed,
                                        .stream = kStream,
                                        .rate = rate});
          // 1 - rate, 1 / (1 - rate) and a product are each rounded to fp32. If the rate is near 1, the
          // difference 1 - rate has lost five bits.
          EXPECT_LE(normalised_error(got, expected), rounding_error(dtype) + 0x1p-19) << cols << " " << rate;
          for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i] == 0, expected[i] == 0) << i;
        }
      }
    }
  }
}

// The number of zeros has a binomial distribution, for which the test allows five standard deviations.
// Elements that are kept are multiplied by 1 / (1 - rate), so the mean is unchanged.
TEST_P(DropoutTest, RateAndScaleAreCorrect) {
  Bench bench(GetParam());
  constexpr std::int64_t kRows = 64, kCols = 1024;
  std::vector<std::int32_t> tokens;
  for (std::int32_t t = 0; t < kRows; ++t) tokens.push_back(t);
  const Tensor x = bench.upload(Values(kRows * kCols, 1.0), DType::kF32, {kRows, kCols});
  for (const float rate : {0.1F, 0.5F, 0.8F}) {
    const Values out = bench.run({.x = x,
                                  .out = bench.empty(DType::kF32, {kRows, kCols}),
                                  .tokens = bench.tokens(tokens),
                                  .scalars = bench.step(3),
                                  .seed = kSeed,
                                  .stream = kStream,
                                  .rate = rate});
    const double n = kRows * kCols, p = static_cast<double>(rate);
    const auto zeros = static_cast<double>(std::count(out.begin(), out.end(), 0.0));
    EXPECT_NEAR(zeros, n * p, 5 * std::sqrt(n * p * (1 - p))) << rate;
    double sum = 0;
    for (const double v : out) sum += v;
    EXPECT_NEAR(sum / n, 1, 5 * std::sqrt(p / (1 - p) / n)) << rate;
  }
}

// Masks for different steps, tokens, names or seeds are independent. Two independent masks agree in the
// fraction (1-p)² + p² of the elements.
TEST_P(DropoutTest, MasksAreIndependent) {
  Bench bench(GetParam());
  constexpr std::int64_t kRows = 16, kCols = 512;
  constexpr double kRate = 0.3;
  std::vector<std::int32_t> tokens, others;
  for (std::int32_t t = 0; t < kRows; ++t) tokens.push_back(t), others.push_back(t + 1);
  const Dropout call{.x = bench.upload(Values(kRows * kCols, 1.0), DType::kF32, {kRows, kCols}),
                     .out = bench.empty(DType::kF32, {kRows, kCols}),
                     .tokens = bench.tokens(tokens),
                     .scalars = bench.step(3),
                     .seed = kSeed,
                     .stream = kStream,
                     .rate = static_cast<float>(kRate)};
  const Values first = bench.run(call);
  EXPECT_EQ(bench.run(call), first);
  std::vector<Dropout> changed(4, call);
  changed[0].scalars = bench.step(4);
  changed[1].tokens = bench.tokens(others);
  changed[2].stream = random_stream_id("layers.3.attention.out.lora_A");
  changed[3].seed = kSeed + 1;
  for (std::size_t i = 0; i < changed.size(); ++i) {
    const Values other = bench.run(changed[i]);
    double same = 0;
    for (std::size_t j = 0; j < first.size(); ++j) same += (first[j] == 0) == (other[j] == 0) ? 1 : 0;
    const double n = kRows * kCols, p = (1 - kRate) * (1 - kRate) + kRate * kRate;
    EXPECT_NEAR(same, n * p, 5 * std::sqrt(n * p * (1 - p))) << i;
  }
}

// Ranks that have only some rows, or slices of fused columns, use the same mask as for the complete matrix.
TEST_P(DropoutTest, PartsHaveTheMaskOfTheWhole) {
  Bench bench(GetParam());
  const auto rows = static_cast<std::int64_t>(kTokens.size());
  constexpr std::int64_t kCols = 48;
  const Values x = random_values(rows * kCols, 5);
  const Dropout whole{.x = bench.upload(x, DType::kF32, {rows, kCols}),
                      .out = bench.empty(DType::kF32, {rows, kCols}),
                      .tokens = bench.tokens(kTokens),
                      .scalars = bench.step(9),
                      .seed = kSeed,
                      .stream = kStream,
                      .rate = 0.4F};
  const Values expected = bench.run(whole);
  // The second halves of columns [0, 24), [24, 36) and [36, 48) have 12, 6 and 6 columns. The second and the
  // third half begin at columns that are not multiples of four.
  Values part, wanted;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (const auto& [begin, end] : {std::pair{12, 24}, {30, 36}, {42, 48}}) {
      for (std::int64_t c = begin; c < end; ++c) {
        part.push_back(x[static_cast<std::size_t>(row * kCols + c)]);
        wanted.push_back(expected[static_cast<std::size_t>(row * kCols + c)]);
      }
    }
  }
  Dropout slices = whole;
  slices.x = bench.upload(part, DType::kF32, {rows, 24});
  slices.out = bench.empty(DType::kF32, {rows, 24});
  slices.run_count = 3;
  slices.runs = {{{0, 12}, {12, 30}, {18, 42}}};
  EXPECT_EQ(bench.run(slices), wanted);

  Dropout some = whole;
  some.x = whole.x.slice(2, 5);
  some.out = bench.empty(DType::kF32, {3, kCols});
  some.tokens = whole.tokens.slice(2, 5);
  EXPECT_EQ(bench.run(some), Values(expected.begin() + 2 * kCols, expected.begin() + 5 * kCols));
}

}  // namespace
}  // namespace primus::turbo::test
