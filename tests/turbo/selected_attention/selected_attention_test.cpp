#include "turbo/selected_attention/selected_attention.h"

#include "turbo/attention/attention.h"
#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

using Sizes = SelectedAttentionShape;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

struct Operands {
  Values q, kv, sinks, selected;
};

struct Result {
  Values out, lse;
};

Result reference(const Sizes& s, const Operands& x) {
  Result result{Values(at(s.tokens * s.heads * s.value_dim)), Values(at(s.heads * s.tokens))};
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      double total = x.sinks.empty() ? 0 : std::exp(x.sinks[at(h)]);
      double* const out = result.out.data() + (t * s.heads + h) * s.value_dim;
      for (std::int64_t place = 0; place < s.selected; ++place) {
        const auto row = static_cast<std::int64_t>(x.selected[at(t * s.selected + place)]);
        if (row < 0) continue;
        double score = 0;
        for (std::int64_t i = 0; i < s.key_dim; ++i)
          score += x.q[at((t * s.heads + h) * s.key_dim + i)] * x.kv[at(row * s.key_dim + i)];
        const double weight = std::exp(static_cast<double>(s.scale) * score);
        total += weight;
        for (std::int64_t i = 0; i < s.value_dim; ++i) out[i] += weight * x.kv[at(row * s.key_dim + i)];
      }
      for (std::int64_t i = 0; i < s.value_dim; ++i) out[i] = total > 0 ? out[i] / total : 0;
      result.lse[at(h * s.tokens + t)] = std::log(total);
    }
  }
  return result;
}

struct Gradients {
  Values d_q, d_kv;
};

// Computes the gradients by the chain rule. Another test compares them with finite differences for small
// shapes.
Gradients reference_gradients(const Sizes& s, const Operands& x, const Values& d_out) {
  const Result forward = reference(s, x);
  Gradients g{Values(x.q.size()), Values(x.kv.size())};
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const double* const q = x.q.data() + (t * s.heads + h) * s.key_dim;
      const double* const d = d_out.data() + (t * s.heads + h) * s.value_dim;
      const double* const out = forward.out.data() + (t * s.heads + h) * s.value_dim;
      double delta = 0;
      for (std::int64_t i = 0; i < s.value_dim; ++i) delta += d[i] * out[i];
      for (std::int64_t place = 0; place < s.selected; ++place) {
        const auto row = static_cast<std::int64_t>(x.selected[at(t * s.selected + place)]);
        if (row < 0) continue;
        const double* const key = x.kv.data() + row * s.key_dim;
        double score = 0, d_weight = 0;
        for (std::int64_t i = 0; i < s.key_dim; ++i) score += q[i] * key[i];
        for (std::int64_t i = 0; i < s.value_dim; ++i) d_weight += d[i] * key[i];
        const auto scale = static_cast<double>(s.scale);
        const double p = std::exp(scale * score - forward.lse[at(h * s.tokens + t)]);
        const double d_score = scale * p * (d_weight - delta);
        for (std::int64_t i = 0; i < s.key_dim; ++i) {
          g.d_q[at((t * s.heads + h) * s.key_dim + i)] += d_score * key[i];
          g.d_kv[at(row * s.key_dim + i)] += d_score * q[i] + (i < s.value_dim ? p * d[i] : 0);
        }
      }
    }
  }
  return g;
}

// Returns lists in random order with empty entries at any position; all entries of one list are empty.
Values random_lists(const Sizes& s, std::uint64_t seed) {
  Values lists;
  const Values draws = random_values(s.tokens * s.rows, seed);
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    std::vector<std::int64_t> rows(at(s.rows));
    for (std::int64_t r = 0; r < s.rows; ++r) rows[at(r)] = r;
    std::sort(rows.begin(), rows.end(), [&](std::int64_t a, std::int64_t b) {
      return draws[at(t * s.rows + a)] < draws[at(t * s.rows + b)];
    });
    for (std::int64_t place = 0; place < s.selected; ++place) {
      const bool empty = t == 1 || place >= s.rows || draws[at(t * s.rows + place)] > 1;
      lists.push_back(empty ? -1 : static_cast<double>(rows[at(place)]));
    }
  }
  return lists;
}

Operands random_operands(const Sizes& s, DType dtype, bool sinks) {
  return {rounded(random_values(s.tokens * s.heads * s.key_dim, 1), dtype),
          rounded(random_values(s.rows * s.key_dim, 2), dtype),
          sinks ? rounded(random_values(s.heads, 3), dtype) : Values(), random_lists(s, 4)};
}

struct Uploaded {
  Tensor q, kv, sinks, selected;
  Uploaded(OperatorBench& bench, const Sizes& s, const Operands& x, DType dtype)
      : q(bench.upload(x.q, dtype, {s.tokens, s.heads * s.key_dim})),
        kv(bench.upload(x.kv, dtype, {s.rows, s.key_dim})),
        sinks(x.sinks.empty() ? Tensor() : bench.upload(x.sinks, dtype, {s.heads})),
        selected(bench.upload(x.selected, DType::kI32, {s.tokens, s.selected})) {}
};

struct Outputs {
  Tensor out, lse, d_q, d_kv;
};

Outputs run(OperatorBench& bench, const Sizes& s, const Uploaded& x, const Tensor& d_out,
            std::int64_t queries_at_once = 0) {
  const DType dtype = x.q.dtype;
  const Outputs y{bench.empty(dtype, {s.tokens, s.heads * s.value_dim}),
                  bench.empty(DType::kF32, {s.heads, s.tokens}), bench.empty(dtype, x.q.shape),
                  bench.empty(dtype, x.kv.shape)};
  bench.run(SelectedAttentionForward{.shape = s,
                                     .q = x.q,
                                     .kv = x.kv,
                                     .selected = x.selected,
                                     .sinks = x.sinks,
                                     .out = y.out,
                                     .lse = y.lse,
                                     .workspace = {}});
  bench.run(SelectedAttentionBackward{.shape = s,
                                      .q = x.q,
                                      .kv = x.kv,
                                      .selected = x.selected,
                                      .out = y.out,
                                      .lse = y.lse,
                                      .d_out = d_out,
                                      .d_q = y.d_q,
                                      .d_kv = y.d_kv,
                                      .queries_at_once = queries_at_once,
                                      .workspace = {}});
  return y;
}

constexpr Sizes kSmall{
    .tokens = 3, .rows = 5, .selected = 4, .heads = 2, .key_dim = 3, .value_dim = 2, .scale = 0.7F};
// Cases: a small case; one key; several tiles of list entries, heads and columns; a value that is as wide as
// the key.
constexpr Sizes kShapes[] = {
    kSmall,
    {.tokens = 2, .rows = 1, .selected = 1, .heads = 1, .key_dim = 1, .value_dim = 1, .scale = 1},
    {.tokens = 3, .rows = 90, .selected = 70, .heads = 5, .key_dim = 40, .value_dim = 32, .scale = 0.2F},
    {.tokens = 2, .rows = 6, .selected = 8, .heads = 67, .key_dim = 144, .value_dim = 144, .scale = 0.1F},
};

TEST(SelectedAttentionReference, GradientsEqualFiniteDifferences) {
  const Operands x = random_operands(kSmall, DType::kF64, true);
  const Values d_out = random_values(kSmall.tokens * kSmall.heads * kSmall.value_dim, 5);
  const Gradients g = reference_gradients(kSmall, x, d_out);
  const auto loss = [&](const Operands& y) { return dot(reference(kSmall, y).out, d_out); };
  EXPECT_LE(normalised_error(g.d_q, numeric_gradient(
                                        [&](const Values& q) {
                                          return loss({q, x.kv, x.sinks, x.selected});
                                        },
                                        x.q)),
            1e-8);
  EXPECT_LE(normalised_error(g.d_kv, numeric_gradient(
                                         [&](const Values& kv) {
                                           return loss({x.q, kv, x.sinks, x.selected});
                                         },
                                         x.kv)),
            1e-8);
}

class SelectedAttentionTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, SelectedAttentionTest, ::testing::ValuesIn(devices_under_test()));

TEST_P(SelectedAttentionTest, EqualsTheReferenceForwardAndBackward) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Sizes& s : kShapes) {
      for (const bool sinks : {false, true}) {
        SCOPED_TRACE(std::to_string(s.heads) + " heads" + (sinks ? ", sinks" : ""));
        const Operands x = random_operands(s, dtype, sinks);
        const Values d_out = rounded(random_values(s.tokens * s.heads * s.value_dim, 5), dtype);
        const Uploaded up(bench, s, x, dtype);
        const Tensor d = bench.upload(d_out, dtype, {s.tokens, s.heads * s.value_dim});
        const Outputs y = run(bench, s, up, d);
        const Result expected = reference(s, x);
        const Gradients gradients = reference_gradients(s, x, d_out);
        // In bf16, weights and their gradients are rounded for tensor cores.
        const double tolerance = dtype == DType::kBF16 ? 1e-2 : 1e-5;
        EXPECT_LE(normalised_error(bench.download(y.out), expected.out), tolerance);
        EXPECT_LE(normalised_error(bench.download(y.lse), expected.lse), 1e-5);
        EXPECT_LE(normalised_error(bench.download(y.d_q), gradients.d_q), tolerance);
        EXPECT_LE(normalised_error(bench.download(y.d_kv), gradients.d_kv), tolerance);
        if (!sinks) continue;
        const Tensor d_sinks = bench.empty(DType::kF32, {s.heads});
        bench.run(AttentionBackwardSinks{.heads = s.heads,
                                         .value_dim = s.value_dim,
                                         .sinks = up.sinks,
                                         .out = y.out,
                                         .lse = y.lse,
                                         .d_out = d,
                                         .d_sinks = d_sinks,
                                         .accumulate = false});
        if (s.heads > 5) continue;  // the reference is slow
        const Values numeric = numeric_gradient(
            [&](const Values& moved) {
              return dot(reference(s, {x.q, x.kv, moved, x.selected}).out, d_out);
            },
            x.sinks);
        EXPECT_LE(normalised_error(bench.download(d_sinks), numeric), tolerance);
      }
    }
  }
}

// Rows that are not selected may hold NaN, as empty pages of a cache do.
TEST_P(SelectedAttentionTest, RowsThatAreNotSelectedAreNotRead) {
  OperatorBench bench(GetParam());
  const Sizes s = kShapes[2];
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Operands x = random_operands(s, dtype, false);
    std::vector<bool> chosen(at(s.rows));
    for (double& row : x.selected) {
      if (row == 0) row = -1;
      if (row >= 0) chosen[at(static_cast<std::int64_t>(row))] = true;
    }
    const Values d_out = rounded(random_values(s.tokens * s.heads * s.value_dim, 5), dtype);
    const Result expected = reference(s, x);
    const Gradients gradients = reference_gradients(s, x, d_out);
    for (std::int64_t i = 0; i < s.rows * s.key_dim; ++i) {
      if (!chosen[at(i / s.key_dim)]) x.kv[at(i)] = NAN;
    }
    const Outputs y = run(bench, s, Uploaded(bench, s, x, dtype),
                          bench.upload(d_out, dtype, {s.tokens, s.heads * s.value_dim}));
    const double tolerance = dtype == DType::kBF16 ? 1e-2 : 1e-5;
    EXPECT_LE(normalised_error(bench.download(y.out), expected.out), tolerance);
    EXPECT_LE(normalised_error(bench.download(y.d_q), gradients.d_q), tolerance);
    EXPECT_LE(normalised_error(bench.download(y.d_kv), gradients.d_kv), tolerance);
  }
}

TEST_P(SelectedAttentionTest, BitsDependOnNeitherThreadsNorSlices) {
  const Sizes s{
      .tokens = 7, .rows = 20, .selected = 12, .heads = 3, .key_dim = 24, .value_dim = 16, .scale = 0.2F};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Operands x = random_operands(s, dtype, true);
    const Values d_out = rounded(random_values(s.tokens * s.heads * s.value_dim, 5), dtype);
    std::vector<std::vector<unsigned char>> first;
    for (const int threads : {1, 2, 3}) {
      DeviceUnderTest spec = GetParam();
      spec.threads = threads;
      OperatorBench bench(spec);
      const Uploaded up(bench, s, x, dtype);
      const Tensor d = bench.upload(d_out, dtype, {s.tokens, s.heads * s.value_dim});
      for (const std::int64_t at_once : {0, 1, 3}) {
        const Outputs y = run(bench, s, up, d, at_once);
        std::vector<std::vector<unsigned char>> bits;
        for (const Tensor& tensor : {y.out, y.lse, y.d_q, y.d_kv}) bits.push_back(bench.bytes(tensor));
        if (first.empty()) first = bits;
        EXPECT_EQ(bits, first) << threads << " threads, " << at_once << " queries at once";
      }
    }
  }
}

}  // namespace
}  // namespace primus::turbo::test
