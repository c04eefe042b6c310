// Tests attention that is computed in parts. The joined results of parts of the queries and keys equal
// attention over all queries and keys. Ring attention relies on this equality.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "turbo/attention/attention.h"
#include "turbo/attention/attention_reference.h"
#include "turbo/attention/causal_shape.h"
#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

struct Case {
  AttentionShape shape;
  // The positions at which parts begin. The first part begins at 0 and is not listed.
  std::vector<std::int64_t> query_cuts, key_cuts;
  std::vector<std::int64_t> documents = {};  // lengths of documents; empty: a single document
  bool sinks = false;
};

std::vector<Case> cases() {
  std::vector<Case> all{
      {causal_shape(2, 130, 4, 2, 16, 24), {}, {64, 100}},         // grouped queries, two sequences
      {causal_shape(1, 150, 2, 1, 32, 32), {50, 100}, {50, 100}},  // a ring of three ranks
      {causal_shape(1, 150, 2, 2, 24, 16),
       {70},
       {1, 64, 65, 149},
       {},
       true},  // sinks, and parts with a single key
      {causal_shape(1, 140, 2, 1, 16, 16), {80}, {30, 64, 90}, {40, 3, 64, 20}},  // packed documents
      {causal_shape(1, 100, 2, 2, 192, 128), {60}, {33}},             // head widths of latent attention
      {causal_shape(1, 160, 2, 1, 16, 16), {64}, {64, 128}},          // a window, set below
      {causal_shape(1, 160, 2, 1, 16, 16), {50, 90}, {40, 80, 120}},  // chunks, set below
      {causal_shape(1, 160, 1, 1, 16, 16),
       {100},
       {31, 77},
       {90, 70},
       true},  // with a chunk, a window, documents and sinks
      {causal_shape(2, 90, 2, 1, 20, 7), {}, {10, 20, 30, 40, 50, 60, 70, 80}},  // not causal
      {causal_shape(9, 67, 2, 1, 64, 64), {}, {20, 64}},                         // more heads than threads
      {causal_shape(1, 384, 4, 2, 64, 64), {128}, {128}},                        // parts that cuDNN accepts
  };
  all[5].shape.window = 33;
  all[6].shape.chunk = 50;
  all[7].shape.chunk = 70, all[7].shape.window = 20;
  all[8].shape.causal = false;
  return all;
}

std::vector<std::pair<std::int64_t, std::int64_t>> parts(std::vector<std::int64_t> cuts, std::int64_t end) {
  cuts.insert(cuts.begin(), 0);
  cuts.push_back(end);
  std::vector<std::pair<std::int64_t, std::int64_t>> result;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) result.emplace_back(cuts[i], cuts[i + 1]);
  return result;
}

Values draw(std::int64_t n, std::uint64_t seed, DType dtype) {
  return rounded(random_values(n, seed), dtype);
}

AttentionReference whole(const Case& c, DType dtype) {
  const AttentionShape& s = c.shape;
  AttentionReference reference(s, draw(s.batch * s.seq_q * s.heads * s.head_dim, 1, dtype),
                               draw(s.batch * s.seq_k * s.kv_heads * s.head_dim, 2, dtype),
                               draw(s.batch * s.seq_k * s.kv_heads * s.value_dim, 3, dtype));
  if (c.sinks) reference.sinks = draw(s.heads, 5, dtype);
  if (!c.documents.empty()) {
    for (std::int64_t b = 0; b < s.batch; ++b) {
      std::int64_t start = 0;
      std::size_t document = 0;
      for (std::int64_t i = 0; i < s.seq_q; ++i) {
        if (i == start + c.documents[document % c.documents.size()]) start = i, ++document;
        reference.first_key.push_back(static_cast<double>(start));
      }
    }
  }
  return reference;
}

struct Outcome {
  Values out, lse, d_q, d_k, d_v, d_sinks;
};

Values slice(const Values& all, std::int64_t begin, std::int64_t end) {
  return all.empty() ? Values() : Values(all.begin() + begin, all.begin() + end);
}

// Computes attention of every part of the queries over every part of the keys, in an order given by `seed`.
// If there are several query parts, the batch must be one sequence.
Outcome run(OperatorBench& bench, const Case& c, const AttentionReference& all, const Values& d_out_values,
            DType dtype, DType gradient, std::uint32_t seed) {
  const AttentionShape& s = c.shape;
  const std::int64_t q_width = s.heads * s.head_dim, k_width = s.kv_heads * s.head_dim,
                     v_width = s.kv_heads * s.value_dim, out_width = s.heads * s.value_dim;
  const Tensor k = bench.upload(all.k, dtype, {s.batch * s.seq_k, k_width});
  const Tensor v = bench.upload(all.v, dtype, {s.batch * s.seq_k, v_width});
  const Tensor d_k = bench.empty(gradient, k.shape), d_v = bench.empty(gradient, v.shape);
  const Tensor sinks = c.sinks ? bench.upload(all.sinks, dtype, {s.heads}) : Tensor();
  const Tensor d_sinks = c.sinks ? bench.zeros(DType::kF32, {s.heads}) : Tensor();
  std::mt19937 random(seed);
  Outcome result;
  result.lse.resize(static_cast<std::size_t>(s.heads * s.batch * s.seq_q));
  bool first_queries = true;
  for (const auto& [q_begin, q_end] : parts(c.query_cuts, s.seq_q)) {
    const std::int64_t seq_q = q_end - q_begin, tokens = s.batch * seq_q;
    // If the batch has several sequences, there is only one query part.
    const auto rows = [&](const Values& values, std::int64_t width) {
      return slice(values, q_begin * width, (q_begin + tokens) * width);
    };
    const Tensor q = bench.upload(rows(all.q, q_width), dtype, {tokens, q_width});
    const Tensor first_key =
        all.first_key.empty() ? Tensor() : bench.upload(rows(all.first_key, 1), DType::kI32, {tokens});
    const Tensor part = bench.empty(dtype, {tokens, out_width}), out = bench.empty(DType::kF32, part.shape);
    const Tensor part_lse = bench.empty(DType::kF32, {s.heads, tokens}),
                 lse = bench.empty(DType::kF32, part_lse.shape);
    auto key_parts = parts(c.key_cuts, s.seq_k);
    std::shuffle(key_parts.begin(), key_parts.end(), random);
    // Sets the shape and the operands of AttentionForward and of AttentionBackward for a part of the keys.
    const auto over = [&](const std::pair<std::int64_t, std::int64_t>& keys, auto call) {
      call.shape = s;
      call.shape.seq_q = seq_q, call.shape.q_first = q_begin;
      call.shape.seq_k = keys.second - keys.first, call.shape.k_first = keys.first;
      call.q = q, call.k = k.from(keys.first * k_width), call.v = v.from(keys.first * v_width);
      call.q_stride = q_width, call.k_stride = k_width, call.v_stride = v_width;
      call.first_key = first_key;
      return call;
    };
    bool first = true;
    for (const auto& keys : key_parts) {
      AttentionForward forward = over(keys, AttentionForward{});
      if (keys == key_parts.back()) forward.sinks = sinks;
      forward.out = part, forward.lse = part_lse;
      bench.run(forward);
      bench.run(AttentionMerge{.heads = s.heads,
                               .value_dim = s.value_dim,
                               .part = part,
                               .part_lse = part_lse,
                               .out = out,
                               .lse = lse,
                               .accumulate = !first});
      first = false;
    }
    const Values merged = bench.download(out), merged_lse = bench.download(lse);
    result.out.insert(result.out.end(), merged.begin(), merged.end());
    for (std::int64_t h = 0; h < s.heads; ++h) {
      std::copy_n(merged_lse.begin() + h * tokens, tokens,
                  result.lse.begin() + h * s.batch * s.seq_q + q_begin);
    }

    const Tensor whole_out = bench.upload(merged, dtype, part.shape);
    const Tensor d_out = bench.upload(rows(d_out_values, out_width), dtype, part.shape);
    const Tensor d_q = bench.empty(gradient, q.shape);
    first = true;
    for (const auto& keys : key_parts) {
      AttentionBackward backward = over(keys, AttentionBackward{});
      backward.out = whole_out, backward.lse = lse, backward.d_out = d_out;
      backward.d_q = d_q;
      backward.d_k = d_k.from(keys.first * k_width), backward.d_v = d_v.from(keys.first * v_width);
      backward.d_q_stride = q_width, backward.d_k_stride = k_width, backward.d_v_stride = v_width;
      backward.accumulate_d_q = !first, backward.accumulate_d_kv = !first_queries;
      bench.run(backward);
      first = false;
    }
    if (c.sinks) {
      bench.run(AttentionBackwardSinks{.heads = s.heads,
                                       .value_dim = s.value_dim,
                                       .sinks = sinks,
                                       .out = whole_out,
                                       .lse = lse,
                                       .d_out = d_out,
                                       .d_sinks = d_sinks,
                                       .accumulate = true});
    }
    const Values d_queries = bench.download(d_q);
    result.d_q.insert(result.d_q.end(), d_queries.begin(), d_queries.end());
    first_queries = false;
  }
  result.d_k = bench.download(d_k), result.d_v = bench.download(d_v);
  if (c.sinks) result.d_sinks = bench.download(d_sinks);
  return result;
}

TEST(AttentionParts, PartsMergedInAnyOrderEqualTheWhole) {
  for (const DeviceUnderTest& spec : devices_under_test()) {
    OperatorBench bench(spec);
    const std::vector<Case> all = cases();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Case& c = all[i];
      const AttentionShape& s = c.shape;
      const bool emulated = spec.emulated_warp > 0;
      if (emulated && s.batch * s.heads * s.seq_q * s.seq_k > 60'000) continue;
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        AttentionReference expected = whole(c, dtype);
        const Values d_out = draw(s.batch * s.seq_q * s.heads * s.value_dim, 4, dtype);
        expected.forward();
        expected.backward(d_out);
        for (std::uint32_t seed = 1; seed <= (emulated ? 1U : 2U); ++seed) {
          SCOPED_TRACE("case " + std::to_string(i) + ", " + std::string(name_of(dtype)) + ", order " +
                       std::to_string(seed) + ", " + spec.name());
          // Results are sums of parts that are rounded separately, so they have a few rounding errors of the
          // type.
          const double tolerance = dtype == DType::kF32 ? 1e-5 : 1e-2;
          const Outcome actual = run(bench, c, expected, d_out, dtype, DType::kF32, seed);
          EXPECT_LE(normalised_error(actual.out, expected.out), tolerance);
          EXPECT_LE(normalised_error(actual.lse, expected.lse), 1e-5);
          EXPECT_LE(normalised_error(actual.d_q, expected.d_q), tolerance);
          EXPECT_LE(normalised_error(actual.d_k, expected.d_k), tolerance);
          EXPECT_LE(normalised_error(actual.d_v, expected.d_v), tolerance);
          if (c.sinks) {
            EXPECT_LE(normalised_error(actual.d_sinks, expected.d_sinks), 2 * tolerance);
          }
        }
      }
    }
  }
}

// Gradients accumulate in the type of the operands, so each part adds a rounding error.
TEST(AttentionParts, GradientsAccumulateInTheOperandsType) {
  for (const DeviceUnderTest& spec : devices_under_test()) {
    OperatorBench bench(spec);
    SCOPED_TRACE(spec.name());
    const Case c = cases()[1];
    AttentionReference expected = whole(c, DType::kBF16);
    const Values d_out = draw(c.shape.seq_q * c.shape.heads * c.shape.value_dim, 4, DType::kBF16);
    expected.forward();
    expected.backward(d_out);
    const Outcome actual = run(bench, c, expected, d_out, DType::kBF16, DType::kBF16, 3);
    EXPECT_LE(normalised_error(actual.d_q, expected.d_q), 2e-2);
    EXPECT_LE(normalised_error(actual.d_k, expected.d_k), 2e-2);
    EXPECT_LE(normalised_error(actual.d_v, expected.d_v), 2e-2);
  }
}

TEST(AttentionParts, QueriesThatSeeNoKeyGetZeroAndNoWeight) {
  for (const DeviceUnderTest& spec : devices_under_test()) {
    OperatorBench bench(spec);
    SCOPED_TRACE(spec.name());
    // Keys begin at position 70. The 30 queries begin at 60, so 10 of them precede all keys; the 4 queries
    // begin at 68, so 2 of them precede all keys. On CPUs, the 30 queries use the tiled kernel, and the 4
    // queries the decoding kernel.
    for (const std::int64_t seq_q : {30, 4}) {
      AttentionShape s = causal_shape(1, 100, 2, 1, 16, 8);
      s.seq_q = seq_q, s.seq_k = s.capacity_k = 100;
      s.q_first = seq_q == 30 ? 60 : 68, s.k_first = 70;
      const auto blind = static_cast<std::size_t>(s.k_first - s.q_first);
      AttentionReference reference(s, draw(seq_q * 32, 1, DType::kF32), draw(100 * 16, 2, DType::kF32),
                                   draw(100 * 8, 3, DType::kF32));
      const Tensor q = bench.upload(reference.q, DType::kF32, {seq_q, 32}),
                   k = bench.upload(reference.k, DType::kF32, {100, 16}),
                   v = bench.upload(reference.v, DType::kF32, {100, 8}),
                   out = bench.empty(DType::kF32, {seq_q, 16}), lse = bench.empty(DType::kF32, {2, seq_q});
      bench.run(AttentionForward{.shape = s,
                                 .q = q,
                                 .k = k,
                                 .v = v,
                                 .q_stride = 32,
                                 .k_stride = 16,
                                 .v_stride = 8,
                                 .first_key = {},
                                 .sinks = {},
                                 .out = out,
                                 .lse = lse,
                                 .workspace = {}});
      const Tensor d_q = bench.empty(DType::kF32, q.shape), d_k = bench.empty(DType::kF32, k.shape),
                   d_v = bench.empty(DType::kF32, v.shape);
      bench.run(AttentionBackward{.shape = s,
                                  .q = q,
                                  .k = k,
                                  .v = v,
                                  .q_stride = 32,
                                  .k_stride = 16,
                                  .v_stride = 8,
                                  .first_key = {},
                                  .out = out,
                                  .lse = lse,
                                  .d_out = bench.upload(Values(out.elements(), 1.0), DType::kF32, out.shape),
                                  .d_q = d_q,
                                  .d_k = d_k,
                                  .d_v = d_v,
                                  .d_q_stride = 32,
                                  .d_k_stride = 16,
                                  .d_v_stride = 8,
                                  .workspace = {}});
      const Values results = bench.download(out), sums = bench.download(lse), d_queries = bench.download(d_q);
      for (std::size_t i = 0; i < static_cast<std::size_t>(seq_q); ++i) {
        EXPECT_EQ(std::isinf(sums[i]), i < blind) << i;
        EXPECT_EQ(results[i * 16] == 0, i < blind) << i;
        EXPECT_TRUE(std::isfinite(d_queries[i * 32])) << i;
        if (i < blind) {
          EXPECT_EQ(d_queries[i * 32], 0) << i;
        }
      }
      for (const Tensor& gradient : {d_k, d_v}) {
        for (const double x : bench.download(gradient)) EXPECT_TRUE(std::isfinite(x));
      }
    }
  }
}

}  // namespace
}  // namespace primus::turbo::test
