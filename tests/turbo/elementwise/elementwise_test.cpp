#include "turbo/elementwise/elementwise.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

class ElementwiseTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, ElementwiseTest, ::testing::ValuesIn(devices_under_test()));

TEST_P(ElementwiseTest, AddRoundsOnce) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t n : {1, 63, 100001}) {
      const Values a = rounded(random_values(n, 1), dtype), b = rounded(random_values(n, 2), dtype);
      Values expected(a.size());
      for (std::size_t i = 0; i < a.size(); ++i)
        expected[i] = rounded(rounded(a[i] + b[i], DType::kF32), dtype);
      for (const int in_place : {0, 1, 2}) {  // 0: out has its own memory; 1: out is a; 2: out is b
        const Tensor a_device = bench.upload(a, dtype, {n}), b_device = bench.upload(b, dtype, {n});
        const Tensor out = in_place == 0 ? bench.empty(dtype, {n}) : in_place == 1 ? a_device : b_device;
        bench.run(Add{.a = a_device, .b = b_device, .out = out});
        EXPECT_EQ(bench.download(out), expected) << n;
      }
    }
  }
}

// Returns the fp32 sum of parts [first, first + count), in the order in which comm::Communicator adds them.
float sum_of(const std::vector<float>& parts, std::size_t first, std::size_t count) {
  if (count == 1) return parts[first];
  const std::size_t half = std::bit_ceil(count) / 2;
  return sum_of(parts, first, half) + sum_of(parts, first + half, count - half);
}

TEST_P(ElementwiseTest, PartsOfRanksAreAddedInOrderAndRoundedOnce) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int ranks : {2, 3, 4, 5, 7, 8, 12, 128}) {
      for (const std::int64_t n : {1, 63, 1032}) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks, " << n << " elements");
        std::vector<Values> parts;  // the tensor of each rank
        for (int r = 0; r < ranks; ++r)
          parts.push_back(rounded(random_values(n, 10 + static_cast<std::uint64_t>(r)), dtype));
        Values expected;
        for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
          std::vector<float> of_ranks;
          for (const Values& part : parts) of_ranks.push_back(static_cast<float>(part[i]));
          expected.push_back(rounded(static_cast<double>(sum_of(of_ranks, 0, of_ranks.size())), dtype));
        }
        for (const int rank : {0, ranks / 2, ranks - 1}) {
          Values others;
          for (int offset = 1; offset < ranks; ++offset) {
            const Values& part = parts[static_cast<std::size_t>((rank + ranks - offset) % ranks)];
            others.insert(others.end(), part.begin(), part.end());
          }
          const Tensor own = bench.upload(parts[static_cast<std::size_t>(rank)], dtype, {n});
          const Tensor rest = bench.upload(others, dtype, {(ranks - 1) * n});
          for (const bool in_place : {false, true}) {
            const Tensor out = in_place ? own : bench.empty(dtype, {n});
            bench.run(Add{.a = own, .b = rest, .out = out, .ranks = ranks, .rank = rank});
            EXPECT_EQ(bench.download(out), expected);
          }
          Values in_rank_order;
          for (const Values& part : parts)
            in_rank_order.insert(in_rank_order.end(), part.begin(), part.end());
          const Tensor all = bench.upload(in_rank_order, dtype, {ranks * n});
          const Tensor out = bench.empty(dtype, {n});
          bench.run(Add{.a = all.slice(rank * n, (rank + 1) * n),
                        .b = all,
                        .out = out,
                        .ranks = ranks,
                        .rank = rank,
                        .by_rank = true});
          EXPECT_EQ(bench.download(out), expected);
        }
      }
    }
  }
}

TEST_P(ElementwiseTest, CastRoundsAndKeepsSpecialValues) {
  OperatorBench bench(GetParam());
  Values x = rounded(random_values(10007, 1), DType::kF32);
  for (const double special : {0.0, -0.0, 1e-40, 3.4e38, double{INFINITY}, -double{INFINITY}, 1 + 0x1p-8}) {
    x.push_back(rounded(special, DType::kF32));
  }
  const auto n = static_cast<std::int64_t>(x.size());
  for (const DType from : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const DType to : {DType::kF32, DType::kBF16, DType::kF16}) {
      const Tensor out = bench.empty(to, {n});
      bench.run(Cast{.x = bench.upload(x, from, {n}), .out = out});
      EXPECT_EQ(bench.download(out), rounded(rounded(x, from), to));
    }
  }
  for (const DType to : {DType::kBF16, DType::kF16}) {
    const Tensor out = bench.zeros(to, {1});
    bench.run(Cast{.x = bench.upload({NAN}, DType::kF32, {1}), .out = out});
    EXPECT_TRUE(std::isnan(bench.download(out)[0]));
  }
}

// Casts every fp16 number to another type and back. For NaN, the result only has to be NaN.
TEST_P(ElementwiseTest, CastsOfFp16AreExact) {
  OperatorBench bench(GetParam());
  constexpr std::int64_t kCodes = 65536;
  std::vector<std::uint16_t> codes(kCodes);
  std::iota(codes.begin(), codes.end(), std::uint16_t{0});
  const Tensor halves = bench.empty(DType::kF16, {kCodes}), wide = bench.empty(DType::kF32, {kCodes}),
               back = bench.empty(DType::kF16, {kCodes});
  bench.write_bytes(halves, codes.data());
  bench.run(Cast{.x = halves, .out = wide});
  bench.run(Cast{.x = wide, .out = back});
  const Values values = bench.download(wide);
  const std::vector<unsigned char> bytes = bench.bytes(back);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    Float16 half;
    half.bits = codes[i];
    const auto expected = static_cast<float>(half);
    std::uint16_t returned = 0;
    std::memcpy(&returned, bytes.data() + 2 * i, sizeof(returned));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(values[i])) << i;
      ASSERT_GT(returned & 0x7fffU, 0x7c00U) << i;
    } else {
      ASSERT_EQ(values[i], static_cast<double>(expected)) << i;
      ASSERT_EQ(returned, codes[i]);
    }
  }
}

TEST_P(ElementwiseTest, Sum) {
  OperatorBench bench(GetParam());
  for (const std::int64_t n : {1, 31, 4096, 300007}) {
    const Values x = rounded(random_values(n, 1), DType::kF32);
    const double expected = std::accumulate(x.begin(), x.end(), 0.0);
    const Tensor out = bench.upload({2.5}, DType::kF32, {1}), x_device = bench.upload(x, DType::kF32, {n});
    bench.run(Sum{.x = x_device, .out = out, .accumulate = true});
    EXPECT_NEAR(bench.download(out)[0], expected + 2.5, 1e-7 * (std::abs(expected) + 2.5));
    bench.run(Sum{.x = x_device, .out = out, .accumulate = false});
    EXPECT_NEAR(bench.download(out)[0], expected, 1e-7 * std::abs(expected) + 1e-12);
  }
}

TEST_P(ElementwiseTest, CountNonFinite) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t n : {1, 100, 200001}) {
      Values x = rounded(random_values(n, 1), dtype);
      const Tensor out = bench.upload({5}, DType::kI32, {1});
      bench.run(CountNonFinite{.x = bench.upload(x, dtype, {n}), .out = out, .accumulate = false});
      EXPECT_EQ(bench.download(out)[0], 0);
      double bad = 0;
      for (std::size_t i = 0; i < x.size(); i += 7, ++bad)
        x[i] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -INFINITY;
      const Tensor x_device = bench.upload(x, dtype, {n});
      bench.run(CountNonFinite{.x = x_device, .out = out, .accumulate = false});
      EXPECT_EQ(bench.download(out)[0], bad);
      bench.run(CountNonFinite{.x = x_device, .out = out, .accumulate = true});
      EXPECT_EQ(bench.download(out)[0], 2 * bad);
    }
    // There are more non-finite elements than a 16-bit counter can hold.
    const Tensor out = bench.zeros(DType::kI32, {1});
    const std::int64_t n = 70000;
    bench.run(CountNonFinite{.x = bench.empty(dtype, {n}), .out = out, .accumulate = false});
    EXPECT_EQ(bench.download(out)[0], n);
  }
}

TEST_P(ElementwiseTest, RandomNormalEqualsTheStreamsNumbers) {
  OperatorBench bench(GetParam());
  const std::int64_t n = 100003;
  const std::uint64_t seed = 42, stream = (std::uint64_t{3} << 32) + 9;
  std::vector<float> expected(static_cast<std::size_t>(n));
  fill_normal(RandomStream(seed, RandomPurpose::kInit, 0, 3, 9), 0, expected, 1.0F, 0.02F);
  const Tensor out = bench.empty(DType::kF32, {n});
  const auto draw = [&](const Tensor& part, std::int64_t offset) {
    bench.run(RandomNormal{
        .out = part, .seed = seed, .stream = stream, .offset = offset, .mean = 1.0F, .std = 0.02F});
  };
  draw(out, 0);
  EXPECT_EQ(bench.download(out), Values(expected.begin(), expected.end()));
  // Two shards draw the same numbers as the complete tensor.
  const Tensor again = bench.empty(DType::kF32, {n});
  draw(again.slice(0, 777), 0);
  draw(again.slice(777, n), 777);
  EXPECT_EQ(bench.bytes(again), bench.bytes(out));
  // A tensor that holds only columns [5, 5 + 13) of rows with 103 columns, from row 2 on, draws the same
  // numbers as the complete tensor.
  constexpr std::int64_t kRows = 31, kColumns = 13, kStride = 103, kFirst = 2 * kStride + 5;
  const Tensor columns = bench.empty(DType::kF32, {kRows * kColumns});
  bench.run(RandomNormal{.out = columns,
                         .seed = seed,
                         .stream = stream,
                         .offset = kFirst,
                         .mean = 1.0F,
                         .std = 0.02F,
                         .length = kColumns,
                         .stride = kStride});
  Values of_columns;
  for (std::int64_t i = 0; i < kRows * kColumns; ++i)
    of_columns.push_back(expected[static_cast<std::size_t>(kFirst + i / kColumns * kStride + i % kColumns)]);
  EXPECT_EQ(bench.download(columns), of_columns);
}

TEST_P(ElementwiseTest, LogUniformMapsNormalNumbersToLogarithms) {
  OperatorBench bench(GetParam());
  const Values x = {-40, -1, 0, 0.5, 40};
  const Tensor values = bench.upload(x, DType::kF32, {5});
  bench.run(LogUniform{.x = values, .low = 1, .high = 16});
  Values expected;
  for (const double v : x) expected.push_back(std::log(1 + 15 * 0.5 * std::erfc(-v / std::sqrt(2.0))));
  EXPECT_LE(normalised_error(bench.download(values), expected), 1e-6);
  // Each quarter of the range has about a quarter of 40000 samples.
  constexpr std::int64_t kMany = 40000;
  const Tensor many = bench.empty(DType::kF32, {kMany});
  bench.run(RandomNormal{.out = many, .seed = 4, .stream = 5, .offset = 0, .mean = 0, .std = 1});
  bench.run(LogUniform{.x = many, .low = 1, .high = 16});
  std::array<int, 4> quarters{};
  for (const double v : bench.download(many))
    ++quarters.at(static_cast<std::size_t>((std::exp(v) - 1) / 15 * 4));
  for (const int count : quarters) EXPECT_NEAR(count, kMany / 4, 400);
}

TEST_P(ElementwiseTest, Scale) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Values x = rounded(random_values(1003, 5), dtype);
    Values expected;
    for (const double v : x) expected.push_back(v * static_cast<double>(0.3F));
    const Tensor in_place = bench.upload(x, dtype, {17, 59}), apart = bench.empty(dtype, {17, 59});
    for (const Tensor& out : {apart, in_place}) {
      bench.run(Scale{.x = in_place, .out = out, .factor = 0.3F});
      EXPECT_LE(normalised_error(bench.download(out), expected), rounding_error(dtype));
    }
  }
}

TEST_P(ElementwiseTest, Fill) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor out = bench.empty(dtype, {70001});
    bench.run(Fill{.out = out, .value = 1.001F});
    EXPECT_EQ(bench.download(out), Values(70001, rounded(1.001F, dtype)));
  }
}

TEST_P(ElementwiseTest, CopyRowsScattersGroups) {
  OperatorBench bench(GetParam());
  // Copies two sequences of three rows to rows 1..3 and columns 2..5 of caches with five rows and seven
  // columns.
  const std::int64_t rows = 6, cols = 4, from_stride = 5, to_stride = 7, group_rows = 3, capacity = 5;
  const Values from = rounded(random_values(rows * from_stride, 1), DType::kBF16);
  const Tensor to = bench.zeros(DType::kBF16, {2 * capacity, to_stride});
  Tensor first = to;
  first.data = static_cast<char*>(to.data) + (to_stride + 2) * size_of(DType::kBF16);
  bench.run(CopyRows{.from = bench.upload(from, DType::kBF16, {rows, from_stride}),
                     .to = first,
                     .rows = rows,
                     .cols = cols,
                     .from_stride = from_stride,
                     .to_stride = to_stride,
                     .group_rows = group_rows,
                     .to_group_stride = capacity * to_stride});
  Values expected(static_cast<std::size_t>(2 * capacity * to_stride));
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t c = 0; c < cols; ++c) {
      const std::int64_t to_row = row / group_rows * capacity + 1 + row % group_rows;
      expected[static_cast<std::size_t>(to_row * to_stride + 2 + c)] =
          from[static_cast<std::size_t>(row * from_stride + c)];
    }
  }
  EXPECT_EQ(bench.download(to), expected);
}

TEST_P(ElementwiseTest, CopyRowsAddsToTheOutput) {
  OperatorBench bench(GetParam());
  const std::int64_t rows = 37, from_stride = 48, to_stride = 72;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto& [first, cols] : {std::pair<std::int64_t, std::int64_t>{8, 40},
                                      {3, 13}}) {  // sizes that allow vectors, and sizes that do not
      const Values from = rounded(random_values(rows * from_stride, 1), dtype);
      Values expected = rounded(random_values(rows * to_stride, 2), dtype);
      const Tensor to = bench.upload(expected, dtype, {rows, to_stride});
      CopyRows call = CopyRows::strided(bench.upload(from, dtype, {rows, from_stride}), to.from(first), rows,
                                        cols, from_stride, to_stride);
      call.add = true;
      bench.run(call);
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t c = 0; c < cols; ++c)
          expected[static_cast<std::size_t>(row * to_stride + first + c)] +=
              from[static_cast<std::size_t>(row * from_stride + c)];
      }
      EXPECT_LE(normalised_error(bench.download(to), expected), rounding_error(dtype)) << cols;
    }
  }
}

TEST(Elementwise, NoThreadCountChangesABit) {
  const std::int64_t n = 1000003;
  const Values x = random_values(n, 1);
  std::vector<unsigned char> first;
  for (const int threads : {1, 2, 5}) {
    OperatorBench bench({.threads = threads});
    const Tensor out = bench.empty(DType::kF32, {1});
    bench.run(Sum{.x = bench.upload(x, DType::kF32, {n}), .out = out, .accumulate = false});
    if (first.empty()) first = bench.bytes(out);
    EXPECT_EQ(bench.bytes(out), first) << threads << " threads";
  }
}

}  // namespace
}  // namespace primus::turbo::test
