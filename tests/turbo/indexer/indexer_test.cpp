#include "turbo/indexer/indexer.h"

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

struct Operands {
  Values q, k, w, first_row, end_row;
};

double score(const IndexerShape& s, const Operands& x, std::int64_t t, std::int64_t row) {
  double sum = 0;
  for (std::int64_t h = 0; h < s.heads; ++h) {
    double product = 0;
    for (std::int64_t i = 0; i < s.head_dim; ++i)
      product += x.q[at((t * s.heads + h) * s.head_dim + i)] * x.k[at(row * s.head_dim + i)];
    sum += x.w[at(t * s.heads + h)] * (product < 0 ? 0 : product);
  }
  return sum;
}

Values reference(const IndexerShape& s, const Operands& x) {
  Values selected;
  for (std::int64_t t = 0; t < s.tokens(); ++t) {
    const std::int64_t base = t / s.seq_q * s.seq_k;
    std::int64_t begin = 0, end = std::min(s.seq_k, (s.q_first + t % s.seq_q + 1) / s.stride);
    if (!x.first_row.empty()) begin = static_cast<std::int64_t>(x.first_row[at(t)]);
    if (!x.end_row.empty()) end = static_cast<std::int64_t>(x.end_row[at(t)]);
    std::vector<std::pair<double, std::int64_t>> best;  // in order of descending score, then ascending row
    for (std::int64_t row = begin; row < end; ++row) {
      const double value = score(s, x, t, base + row);
      best.emplace_back(std::isnan(value) ? -INFINITY : -value, base + row);
    }
    std::sort(best.begin(), best.end());
    best.resize(std::min(best.size(), at(s.top_k)));
    std::vector<std::int64_t> rows;
    for (const auto& [value, row] : best) rows.push_back(row);
    std::sort(rows.begin(), rows.end());
    rows.resize(at(s.top_k), -1);
    selected.insert(selected.end(), rows.begin(), rows.end());
  }
  return selected;
}

// Returns small integers, so that all sums are exact and many scores are equal.
Values whole_numbers(std::int64_t n, std::uint64_t seed) {
  Values values = random_values(n, seed);
  for (double& value : values) value = std::round(value);
  return values;
}

Operands draw(const IndexerShape& s, bool whole, DType dtype) {
  const auto values = [&](std::int64_t n, std::uint64_t seed) {
    return whole ? whole_numbers(n, seed) : rounded(random_values(n, seed), dtype);
  };
  return {values(s.tokens() * s.heads * s.head_dim, 1),
          values(s.batch * s.seq_k * s.head_dim, 2),
          values(s.tokens() * s.heads, 3),
          {},
          {}};
}

Values run(OperatorBench& bench, const IndexerShape& s, const Operands& x, DType dtype, DType weights) {
  const auto rows = [&](const Values& values) {
    return values.empty() ? Tensor() : bench.upload(values, DType::kI32, {s.tokens()});
  };
  const Tensor selected = bench.empty(DType::kI32, {s.tokens(), s.top_k});
  bench.run(IndexerSelect{.shape = s,
                          .q = bench.upload(x.q, dtype, {s.tokens(), s.heads * s.head_dim}),
                          .k = bench.upload(x.k, dtype, {s.batch * s.seq_k, s.head_dim}),
                          .w = bench.upload(x.w, weights, {s.tokens(), s.heads}),
                          .first_row = rows(x.first_row),
                          .end_row = rows(x.end_row),
                          .selected = selected,
                          .workspace = {}});
  return bench.download(selected);
}

class IndexerTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, IndexerTest, ::testing::ValuesIn(devices_under_test()));

TEST_P(IndexerTest, ChoosesTheHighestScoresOfVisibleKeys) {
  OperatorBench bench(GetParam());
  const IndexerShape shapes[] = {
      {.batch = 1, .seq_q = 1, .seq_k = 1, .heads = 1, .head_dim = 1, .top_k = 3},
      {.batch = 2, .seq_q = 9, .seq_k = 9, .heads = 2, .head_dim = 5, .top_k = 4},
      // The queries are the last queries of a sequence. There are several tiles of heads, columns and keys.
      {.batch = 1, .seq_q = 3, .seq_k = 600, .heads = 3, .head_dim = 24, .top_k = 100, .q_first = 597},
      {.batch = 1, .seq_q = 2, .seq_k = 70, .heads = 70, .head_dim = 136, .top_k = 20, .q_first = 68},
      // There is one key row per four tokens, so the first queries see no key.
      {.batch = 2, .seq_q = 22, .seq_k = 5, .heads = 4, .head_dim = 8, .top_k = 2, .stride = 4},
  };
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const IndexerShape& s : shapes) {
      for (const bool whole : {true, false}) {
        SCOPED_TRACE(std::to_string(s.heads) + " heads, " + std::to_string(s.seq_k) + " keys");
        const Operands x = draw(s, whole, dtype);
        EXPECT_EQ(run(bench, s, x, dtype, dtype), reference(s, x));
      }
    }
  }
}

TEST_P(IndexerTest, DocumentsAndGivenEnds) {
  OperatorBench bench(GetParam());
  const IndexerShape s{.batch = 2, .seq_q = 12, .seq_k = 12, .heads = 2, .head_dim = 6, .top_k = 3};
  Operands x = draw(s, true, DType::kF32);
  for (std::int64_t t = 0; t < s.tokens(); ++t) x.first_row.push_back(static_cast<double>(t % 12 / 5 * 5));
  EXPECT_EQ(run(bench, s, x, DType::kBF16, DType::kF32), reference(s, x));
  for (std::int64_t t = 0; t < s.tokens(); ++t) x.end_row.push_back(static_cast<double>(t * 7 % 13));
  EXPECT_EQ(run(bench, s, x, DType::kBF16, DType::kF32), reference(s, x));
}

// 0 and -0 are equal, and NaN scores are selected.
TEST_P(IndexerTest, ZerosAndNaNs) {
  OperatorBench bench(GetParam());
  const IndexerShape s{
      .batch = 1, .seq_q = 1, .seq_k = 9, .heads = 1, .head_dim = 1, .top_k = 4, .q_first = 8};
  Operands x{{1}, {-1, 0, -2, 1, -3, 2, -1, -1, -1}, {-1}, {}, {}};
  EXPECT_EQ(run(bench, s, x, DType::kF32, DType::kF32), (Values{0, 1, 2, 4}));
  x.k[7] = NAN;
  EXPECT_EQ(run(bench, s, x, DType::kF32, DType::kF32), (Values{0, 1, 2, 7}));
}

// Rows selected from pages equal those selected from contiguous keys. The pages of two sequences are
// interleaved, and the new tokens of the second sequence begin and end within a page.
TEST_P(IndexerTest, ChoosesFromPagesAsFromRows) {
  OperatorBench bench(GetParam());
  constexpr std::int64_t kPage = 64, kPages = 4, kHeads = 3, kDim = 16, kTopK = 30;
  const std::int64_t lengths[] = {70, 90}, fresh[] = {1, 3}, tables[2][2] = {{3, 0}, {1, 2}};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Values q, w, pages(at(kPages * kPage * kDim), NAN), expected;
    for (int b = 0; b < 2; ++b) {
      const IndexerShape s{.batch = 1,
                           .seq_q = fresh[b],
                           .seq_k = lengths[b],
                           .heads = kHeads,
                           .head_dim = kDim,
                           .top_k = kTopK,
                           .q_first = lengths[b] - fresh[b]};
      Operands x = draw(s, true, dtype);
      if (b == 1) std::rotate(x.k.begin(), x.k.begin() + 5 * kDim, x.k.end());
      q.insert(q.end(), x.q.begin(), x.q.end());
      w.insert(w.end(), x.w.begin(), x.w.end());
      const auto place = [&](std::int64_t row) { return tables[b][row / kPage] * kPage + row % kPage; };
      for (std::int64_t row = 0; row < lengths[b]; ++row)
        std::copy_n(x.k.begin() + row * kDim, kDim, pages.begin() + place(row) * kDim);
      for (const double row : reference(s, x))
        expected.push_back(row < 0 ? -1 : static_cast<double>(place(static_cast<std::int64_t>(row))));
    }
    // Adds a row that belongs to no sequence.
    q.resize(q.size() + at(kHeads * kDim), 1.0);
    w.resize(w.size() + at(kHeads), 1.0);
    expected.resize(expected.size() + at(kTopK), -1.0);
    const Tensor selected = bench.empty(DType::kI32, {5, kTopK});
    bench.run(PagedIndexerSelect{.sequences = {.query_starts = bench.upload({0, 1, 4}, DType::kI32, {3}),
                                               .key_lengths = bench.upload({70, 90}, DType::kI32, {2}),
                                               .block_table = bench.upload({3, 0, 1, 2}, DType::kI32, {2, 2}),
                                               .page_size = kPage},
                                 .heads = kHeads,
                                 .head_dim = kDim,
                                 .top_k = kTopK,
                                 .q = bench.upload(q, dtype, {5, kHeads * kDim}),
                                 .pages = bench.upload(pages, dtype, {kPages * kPage, kDim}),
                                 .w = bench.upload(w, DType::kF32, {5, kHeads}),
                                 .selected = selected,
                                 .workspace = {}});
    EXPECT_EQ(bench.download(selected), expected);
  }
}

}  // namespace
}  // namespace primus::turbo::test
