#include "turbo/top_logits/top_logits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

struct Top {
  Values values, ids;
};

Top run(OperatorBench& bench, const Values& logits, DType dtype, std::int64_t width, std::int64_t vocab,
        std::int64_t k) {
  const std::int64_t rows = static_cast<std::int64_t>(logits.size()) / width;
  const Tensor values = bench.empty(DType::kF32, {rows, k}), ids = bench.empty(DType::kI32, {rows, k});
  bench.run(TopLogits{.logits = bench.upload(logits, dtype, {rows, width}),
                      .vocab = vocab,
                      .values = values,
                      .ids = ids,
                      .workspace = {}});
  return {bench.download(values), bench.download(ids)};
}

// Returns the top-k logits, found by sorting all logits.
Top expected(const Values& logits, std::int64_t width, std::int64_t vocab, std::int64_t k) {
  Top top;
  for (std::size_t row = 0; row < logits.size() / width; ++row) {
    const double* of = &logits[row * width];
    std::vector<std::int32_t> ids(static_cast<std::size_t>(vocab));
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) { return of[a] > of[b]; });
    for (std::int64_t i = 0; i < k; ++i) {
      top.values.push_back(of[ids[i]]);
      top.ids.push_back(ids[i]);
    }
  }
  return top;
}

TEST(TopLogits, AreTheFirstOfAllSortedLogits) {
  struct Case {
    std::int64_t rows, width, vocab, k;
  };
  for (const DeviceUnderTest& spec : devices_under_test()) {
    OperatorBench bench(spec);
    for (const Case& c : {Case{1, 1, 1, 1}, {3, 64, 64, 64}, {2, 5000, 4999, 1}, {3, 5000, 2100, 40}}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        SCOPED_TRACE(spec.name() + ", " + std::to_string(c.width) + ", " + std::string(name_of(dtype)));
        Values logits = rounded(random_values(c.rows * c.width, 5, 3), dtype);
        // Mirrors the first half of the row in the second half, so that there are ties in fp32. In bf16,
        // there are ties anyway.
        for (std::int64_t i = 0; i < c.width / 2; ++i) logits[c.width - 1 - i] = logits[i];
        logits[0] = -0.0;
        for (std::int64_t row = 0; row < c.rows && c.vocab > 9; ++row) logits[row * c.width + 7] = -INFINITY;
        // Columns after the vocabulary may hold any values.
        for (std::int64_t i = c.vocab; i < c.width; ++i) logits[i] = i % 2 == 0 ? NAN : INFINITY;
        const Top actual = run(bench, logits, dtype, c.width, c.vocab, c.k);
        const Top right = expected(logits, c.width, c.vocab, c.k);
        EXPECT_EQ(actual.ids, right.ids);
        EXPECT_EQ(actual.values, right.values);
      }
    }
  }
}

Values draw(OperatorBench& bench, const Values& logits, DType dtype, std::int64_t width, std::int64_t vocab,
            const Values& draws) {
  const std::int64_t rows = static_cast<std::int64_t>(logits.size()) / width;
  const Tensor values = bench.empty(DType::kF32, {rows, 1}), ids = bench.empty(DType::kI32, {rows, 1});
  bench.run(TopLogits{.logits = bench.upload(logits, dtype, {rows, width}),
                      .vocab = vocab,
                      .values = values,
                      .draws = bench.upload(draws, DType::kF64, {rows, 2}),
                      .ids = ids,
                      .workspace = {}});
  const Values result = bench.download(ids), largest = bench.download(values);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t id = static_cast<std::int64_t>(result[row]);
    if (id < 0) continue;
    EXPECT_EQ(largest[row], logits[row * width + id]);
  }
  return result;
}

// The sums of the probabilities of ids 0, 1, ... divide [0, 1) into one interval per id. The drawn id is the
// one whose interval has the given number.
TEST(TopLogits, DrawsHaveTheProbabilitiesOfTheLogits) {
  struct Case {
    std::int64_t width, vocab;
  };
  for (const DeviceUnderTest& spec : devices_under_test()) {
    OperatorBench bench(spec);
    for (const Case& c : {Case{1, 1}, {64, 60}, {5000, 4999}, {6000, 2048}}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        SCOPED_TRACE(spec.name() + ", " + std::to_string(c.width) + ", " + std::string(name_of(dtype)));
        const Values draws{0, 1, 0.25, 1, 0.5, 0.8, 0.999999, 1, 1 - 0x1p-53, 3, 0.7, 0, 0.3, 0.05};
        const std::int64_t rows = std::ssize(draws) / 2;
        Values logits = rounded(random_values(rows * c.width, 9, 3), dtype);
        for (std::int64_t row = 0; row < rows && c.vocab > 9; ++row) logits[row * c.width + 7] = -INFINITY;
        for (std::int64_t row = 0; row < rows; ++row)
          std::fill_n(logits.begin() + row * c.width + c.vocab, c.width - c.vocab, NAN);
        const Values ids = draw(bench, logits, dtype, c.width, c.vocab, draws);
        for (std::int64_t row = 0; row < rows; ++row) {
          const double* of = &logits[row * c.width];
          const double number = draws[row * 2], temperature = draws[row * 2 + 1];
          const auto id = static_cast<std::int64_t>(ids[row]);
          ASSERT_TRUE(id >= 0 && id < c.vocab);
          const double top = *std::max_element(of, of + c.vocab);
          if (temperature == 0) {
            EXPECT_EQ(id, std::max_element(of, of + c.vocab) - of);
            continue;
          }
          double total = 0, before = 0;
          for (std::int64_t i = 0; i < c.vocab; ++i) {
            const double weight = std::exp((of[i] - top) / temperature);
            total += weight;
            if (i < id) before += weight;
          }
          const double own = std::exp((of[id] - top) / temperature);
          EXPECT_GT(own, 0);
          // Terms in fp32 differ by a few units in the last place.
          EXPECT_GE(number, before / total - 1e-6) << row;
          EXPECT_LE(number, (before + own) / total + 1e-6) << row;
        }
      }
    }
  }
}

TEST(TopLogits, DrawsOfRowsWithNanHaveNoIds) {
  for (const DeviceUnderTest& spec : devices_under_test()) {
    OperatorBench bench(spec);
    constexpr std::int64_t kWidth = 3000;
    for (const double odd : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
      Values logits = random_values(3 * kWidth, 6);
      logits[kWidth + 2500] = odd;
      std::fill(logits.begin() + 2 * kWidth, logits.end(), -INFINITY);
      const Values ids = draw(bench, logits, DType::kF32, kWidth, kWidth, {0.5, 1, 0.5, 1, 0.5, 1});
      EXPECT_GE(ids[0], 0) << spec.name();
      EXPECT_EQ(Values(ids.begin() + 1, ids.end()), Values(2, -1)) << spec.name();
    }
  }
}

// The ids of a row with NaN or +infinity, or of a row of only -infinity, are -1.
TEST(TopLogits, RowsWithNanHaveNoIds) {
  for (const DeviceUnderTest& spec : devices_under_test()) {
    OperatorBench bench(spec);
    constexpr std::int64_t kWidth = 3000;
    for (const double odd : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
      Values logits = random_values(3 * kWidth, 6);
      logits[kWidth + 2500] = odd;
      std::fill(logits.begin() + 2 * kWidth, logits.end(), -INFINITY);
      const Top top = run(bench, logits, DType::kF32, kWidth, kWidth, 2);
      EXPECT_GE(top.ids[0], 0) << spec.name();
      EXPECT_EQ(Values(top.ids.begin() + 2, top.ids.end()), Values(4, -1)) << spec.name();
    }
  }
}

}  // namespace
}  // namespace primus::turbo::test
