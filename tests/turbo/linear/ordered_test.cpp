// Products of batch-invariant GPUs: a row has the same bits for any number of rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "turbo/linear/linear.h"
#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

struct Sizes {
  std::int64_t rows, in, out;
};

// The product of the first `rows` rows of x.
std::vector<unsigned char> product(OperatorBench& bench, const Tensor& x, const Tensor& w, DType dtype,
                                   std::int64_t rows, int spared = 0) {
  const Tensor y = bench.empty(dtype, {rows, w.shape[0]});
  bench.run(Gemm{
      .role = GemmRole::kForward, .a = x.slice(0, rows), .b = w, .c = y, .spared = spared, .workspace = {}});
  return bench.bytes(y);
}

void expect_one_order(const DeviceUnderTest& device, const Sizes& s, DType dtype) {
  SCOPED_TRACE(testing::Message() << device.name() << ": " << s.rows << " x " << s.in << " by " << s.out
                                  << " in " << name_of(dtype));
  OperatorBench bench(device);
  const Values x = rounded(random_values(s.rows * s.in, 1), DType::kBF16);
  const Values w = rounded(random_values(s.out * s.in, 2), DType::kBF16);
  const Tensor of_x = bench.upload(x, DType::kBF16, {s.rows, s.in});
  const Tensor of_w = bench.upload(w, DType::kBF16, {s.out, s.in});
  const std::vector<unsigned char> all = product(bench, of_x, of_w, dtype, s.rows);

  const Tensor y = bench.empty(dtype, {s.rows, s.out});
  bench.write_bytes(y, all.data());
  const Values found = bench.download(y);
  const std::int64_t step = std::max<std::int64_t>(s.rows * s.out / 2000, 1);
  for (std::int64_t i = 0; i < s.rows * s.out; i += step) {
    double sum = 0, magnitude = 0;
    for (std::int64_t k = 0; k < s.in; ++k) {
      const double term = x[static_cast<std::size_t>(i / s.out * s.in + k)] *
                          w[static_cast<std::size_t>(i % s.out * s.in + k)];
      sum += term, magnitude += std::abs(term);
    }
    ASSERT_NEAR(found[static_cast<std::size_t>(i)], sum,
                dtype == DType::kF32 ? 1e-5 * magnitude : 1e-2 * std::abs(sum) + 1e-5 * magnitude)
        << "element " << i;
  }

  EXPECT_EQ(product(bench, of_x, of_w, dtype, s.rows, 16), all) << "with fewer multiprocessors";
  for (const std::int64_t rows : {1, 2, 3, 7, 8, 9, 16, 17, 31, 33, 48, 63, 64, 65, 100, 128, 129}) {
    if (rows >= s.rows) break;
    const std::vector<unsigned char> some = product(bench, of_x, of_w, dtype, rows);
    ASSERT_TRUE(std::equal(some.begin(), some.end(), all.begin())) << rows << " rows";
  }
}

TEST(OrderedProducts, ARowHasTheSameBitsForAnyNumberOfRows) {
  for (const DeviceUnderTest& device : batch_invariant_gpus()) {
    // The last rows of both operands and the last panel of k are not whole. Large sizes are for hardware.
    expect_one_order(device, {140, 72, 264}, DType::kBF16);
    expect_one_order(device, {20, 328, 35}, DType::kF32);
    if (device.plugin.empty()) continue;
    for (const Sizes& s : std::vector<Sizes>{{130, 1024, 2048},
                                             {64, 3072, 1024},
                                             {2048, 1024, 6144},
                                             {300, 4096, 4096},
                                             {700, 2560, 9728},
                                             {4096, 896, 4864},
                                             {90, 12288, 4096}}) {
      expect_one_order(device, s, DType::kBF16);
    }
    expect_one_order(device, {300, 1024, 15194}, DType::kF32);
    expect_one_order(device, {520, 1024, 20480}, DType::kF32);
  }
}

// Adds the product of adapters to the first `rows` rows of y.
std::vector<unsigned char> added(OperatorBench& bench, const Tensor& low, const Tensor& up,
                                 const std::vector<unsigned char>& y, std::int64_t rows) {
  const Tensor to = bench.empty(DType::kBF16, {rows, up.shape[0]});
  bench.write_bytes(to, y.data());
  bench.run(Gemm{.role = GemmRole::kForward,
                 .a = low.slice(0, rows),
                 .b = up,
                 .c = to,
                 .accumulate = true,
                 .workspace = {}});
  return bench.bytes(to);
}

TEST(OrderedProducts, ARowOfAnAddedProductOfAdaptersHasTheSameBitsForAnyNumberOfRows) {
  for (const DeviceUnderTest& device : batch_invariant_gpus()) {
    OperatorBench bench(device);
    const std::int64_t out = device.plugin.empty() ? 264 : 4096;
    for (const std::int64_t rank : {8, 16, 24, 64}) {
      constexpr std::int64_t kRows = 140;
      const auto of = [&](std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
        return bench.upload(rounded(random_values(rows * cols, seed), DType::kBF16), DType::kBF16,
                            {rows, cols});
      };
      const Tensor low = of(kRows, rank, 5), up = of(out, rank, 6);
      const std::vector<unsigned char> y = bench.bytes(of(kRows, out, 7));
      const std::vector<unsigned char> all = added(bench, low, up, y, kRows);
      for (const std::int64_t rows : {1, 2, 8, 9, 63, 65, 128}) {
        const std::vector<unsigned char> some = added(bench, low, up, y, rows);
        ASSERT_TRUE(std::equal(some.begin(), some.end(), all.begin()))
            << device.name() << ": rank " << rank << ", " << rows << " rows";
      }
    }
  }
}

// The products of a router: bf16 tokens and fp32 weights.
TEST(OrderedProducts, ARowOfARouterHasTheSameBitsForAnyNumberOfRows) {
  for (const DeviceUnderTest& device : batch_invariant_gpus()) {
    const bool hardware = !device.plugin.empty();
    std::vector<Sizes> all = {{140, 520, 6}, {70, 136, 130}, {70, 520, 1}};
    if (hardware) all.insert(all.end(), {{4096, 2048, 128}, {2048, 4096, 8}, {2048, 2048, 1}});
    for (const Sizes& s : all) {
      OperatorBench bench(device);
      const Values x = rounded(random_values(s.rows * s.in, 1), DType::kBF16);
      const Tensor of_x = bench.upload(x, DType::kBF16, {s.rows, s.in});
      const Tensor of_w = bench.upload(random_values(s.out * s.in, 2), DType::kF32, {s.out, s.in});
      const std::vector<unsigned char> bits = product(bench, of_x, of_w, DType::kF32, s.rows);
      for (const std::int64_t rows : {1, 2, 7, 8, 9, 63, 64, 65}) {
        const std::vector<unsigned char> some = product(bench, of_x, of_w, DType::kF32, rows);
        ASSERT_TRUE(std::equal(some.begin(), some.end(), bits.begin()))
            << device.name() << ": " << s.out << " experts, " << rows << " rows";
      }
    }
  }
}

TEST(OrderedProducts, RoutersOfOddNumbersOfExpertsAreRefused) {
  for (const DeviceUnderTest& device : batch_invariant_gpus()) {
    OperatorBench bench(device);
    const Tensor x = bench.zeros(DType::kBF16, {9, 16}), w = bench.zeros(DType::kF32, {3, 16});
    try {
      product(bench, x, w, DType::kF32, 9);
      FAIL() << "three experts";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      EXPECT_THAT(error.what(), testing::HasSubstr("a router of 3 x 16"));
    }
  }
}

TEST(OrderedProducts, OtherProductsAreRefused) {
  for (const DeviceUnderTest& device : batch_invariant_gpus()) {
    OperatorBench bench(device);
    const Tensor x = bench.zeros(DType::kBF16, {2, 12}), w = bench.zeros(DType::kBF16, {3, 12});
    const Tensor y = bench.zeros(DType::kBF16, {2, 3});
    try {
      bench.run(Gemm{.role = GemmRole::kForward, .a = x, .b = w, .c = y, .workspace = {}});
      FAIL() << "rows of 24 bytes";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      EXPECT_THAT(error.what(), testing::HasSubstr("batch_invariant has no kernel for a product of 2 x 12"));
    }
  }
}

}  // namespace
}  // namespace primus::turbo::test
