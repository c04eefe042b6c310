#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "turbo/attention/attention_reference.h"
#include "turbo/attention/paged_attention.h"
#include "turbo/operator_test.h"
#include "turbo/rms_norm/rms_norm.h"
#include "turbo/rope/rope.h"

namespace primus::turbo::test {
namespace {

struct Lengths {
  std::int64_t fresh, keys;  // number of new tokens, and of all tokens
};

struct Case {
  std::int64_t heads, kv_heads, head_dim, value_dim, page_size;
  std::vector<Lengths> sequences;
  std::int64_t window = 0, chunk = 0;
  bool sinks = false;
  bool shared = false;  // true: values are the first columns of the keys (cached latents)
  float score_cap = 0;
};

std::vector<Case> cases() {
  return {
      {4, 2, 32, 16, 64, {{1, 300}, {1, 1}, {1, 64}, {1, 65}}},                   // decoding
      {4, 2, 32, 16, 64, {{3, 70}, {0, 0}, {65, 100}, {8, 8}, {9, 9}, {1, 90}}},  // decoding and prompts
      {2, 1, 24, 24, 128, {{1, 200}, {70, 190}, {2, 130}}, 40},
      {2, 1, 16, 16, 64, {{1, 200}, {40, 190}, {3, 130}}, 0, 50},
      {4, 4, 20, 12, 64, {{1, 100}, {20, 100}}, 0, 0, true},
      {4, 1, 40, 32, 64, {{1, 150}, {33, 90}, {2, 2}}, 0, 0, false, true},
      {2, 2, 16, 16, 64, {{0, 0}, {0, 10}}},  // there are no tokens to compute
      // Heads whose width allows reading in vectors. For few rows, GPUs divide the keys among blocks.
      {8, 2, 64, 64, 64, {{1, 300}, {1, 1}, {1, 257}}},
      {6, 2, 64, 64, 64, {{2, 290}, {0, 0}, {1, 64}}, 0, 0, true},
      {4, 2, 128, 128, 128, {{1, 300}, {1, 130}, {0, 4}}, 70},
      {8, 1, 32, 32, 64, {{1, 310}, {2, 60}}, 0, 50},
      {2, 2, 256, 256, 64, {{1, 200}}, 100, 0, true},
      // Prompts and decoding with heads for warpgroups: several tiles of queries, and of keys.
      {4, 2, 128, 128, 64, {{200, 300}, {1, 70}, {130, 130}, {0, 5}}},
      {6, 2, 64, 64, 128, {{150, 290}, {3, 64}}, 70, 0, true},
      // Cases with soft caps, for few rows and for a prompt.
      {4, 2, 128, 128, 64, {{1, 200}, {1, 70}}, 90, 0, false, false, 0.5F},
      {4, 2, 16, 16, 64, {{1, 200}, {70, 190}}, 0, 0, true, false, 0.5F},
      // Latents that many heads share, with one and two tiles of heads. The window of the first case masks
      // all keys of some tiles of keys.
      {5, 1, 48, 32, 64, {{1, 300}, {1, 1}, {1, 65}}, 90, 0, false, true},
      {20, 1, 80, 48, 64, {{2, 290}, {0, 0}, {1, 64}}, 0, 0, true, true},
      // DeepSeek's latents, whose tiles fill the kernel's memory.
      {16, 1, 576, 512, 64, {{1, 70}}, 0, 0, false, true},
  };
}

constexpr std::int64_t kIdle = 5;  // number of rows at the end that belong to no sequence

// The results of one pass over some sequences, whose pages are assigned in a shuffled order.
struct Paged {
  std::vector<Values> out;  // the output of each sequence
  Values idle;
};

struct Inputs {
  std::vector<AttentionReference> references;
  Values sinks;
  Inputs(const Case& c, DType dtype) {
    if (c.sinks) sinks = rounded(random_values(c.heads, 99), dtype);
    for (std::size_t b = 0; b < c.sequences.size(); ++b) {
      const auto [fresh, keys] = c.sequences[b];
      const AttentionShape s{.batch = 1,
                             .seq_q = fresh,
                             .seq_k = keys,
                             .capacity_k = keys,
                             .heads = c.heads,
                             .kv_heads = c.kv_heads,
                             .head_dim = c.head_dim,
                             .value_dim = c.value_dim,
                             .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.head_dim))),
                             .causal = true,
                             .window = c.window,
                             .chunk = c.chunk,
                             .q_first = keys - fresh,
                             .score_cap = c.score_cap};
      const Values k = rounded(random_values(keys * c.kv_heads * c.head_dim, 10 * b + 2), dtype);
      Values v = rounded(random_values(keys * c.kv_heads * c.value_dim, 10 * b + 3), dtype);
      if (c.shared) {
        for (std::int64_t i = 0; i < keys * c.value_dim; ++i)
          v[i] = k[i / c.value_dim * c.head_dim + i % c.value_dim];
      }
      AttentionReference& r = references.emplace_back(
          s, rounded(random_values(fresh * c.heads * c.head_dim, 10 * b + 1), dtype), k, v);
      r.sinks = sinks;
      r.forward();
    }
  }
};

Paged run(OperatorBench& bench, const Case& c, const Inputs& inputs, DType dtype, std::uint32_t seed,
          std::vector<std::size_t> which) {
  const auto batch = static_cast<std::int64_t>(which.size());
  const std::int64_t k_width = c.kv_heads * c.head_dim, v_width = c.kv_heads * c.value_dim,
                     q_width = c.heads * c.head_dim, row_width = q_width + k_width + v_width;
  // With a gap of 8 elements, rows still begin at multiples of a vector.
  const std::int64_t gap = c.head_dim % 8 == 0 && c.value_dim % 8 == 0 ? 8 : 3;
  const std::int64_t k_stride = k_width + gap, v_stride = c.shared ? k_stride : v_width + 2 * gap;
  const std::int64_t blocks = 320 / c.page_size + 1, pages = batch * blocks + 2;
  std::vector<std::int32_t> order(static_cast<std::size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));

  Values table, starts{0}, lengths, rows;
  const Tensor k_pages = bench.empty(dtype, {pages * c.page_size, k_stride});
  const Tensor v_pages = c.shared ? k_pages : bench.empty(dtype, {pages * c.page_size, v_stride});
  Values k_host = bench.download(k_pages), v_host = bench.download(v_pages);
  for (std::int64_t b = 0; b < batch; ++b) {
    const AttentionReference& r = inputs.references[which[b]];
    for (std::int64_t i = 0; i < blocks; ++i) table.push_back(order[b * blocks + i]);
    starts.push_back(starts.back() + static_cast<double>(r.s.seq_q));
    lengths.push_back(static_cast<double>(r.s.seq_k));
    const auto slot = [&](std::int64_t position) {
      return order[b * blocks + position / c.page_size] * c.page_size + position % c.page_size;
    };
    for (std::int64_t j = 0; j < r.s.q_first; ++j) {
      if (!c.shared) std::copy_n(&r.v[j * v_width], v_width, &v_host[slot(j) * v_stride]);
      std::copy_n(&r.k[j * k_width], k_width, &k_host[slot(j) * k_stride]);
    }
    for (std::int64_t i = 0; i < r.s.seq_q; ++i) {
      const std::int64_t j = r.s.q_first + i;
      rows.insert(rows.end(), &r.q[i * q_width], &r.q[i * q_width] + q_width);
      rows.insert(rows.end(), &r.k[j * k_width], &r.k[j * k_width] + k_width);
      rows.insert(rows.end(), &r.v[j * v_width], &r.v[j * v_width] + v_width);
    }
  }
  bench.write(k_pages, k_host);
  if (!c.shared) bench.write(v_pages, v_host);
  rows.insert(rows.end(), kIdle * row_width, NAN);
  const std::int64_t tokens = static_cast<std::int64_t>(starts.back()) + kIdle;
  const Tensor qkv = bench.upload(rows, dtype, {tokens, row_width});
  const PagedSequences sequences{bench.upload(starts, DType::kI32, {batch + 1}),
                                 bench.upload(lengths, DType::kI32, {batch}),
                                 bench.upload(table, DType::kI32, {batch, blocks}), c.page_size};
  const bool separate = !c.shared;  // true: values have their own pages
  bench.run(PagedAppend{.sequences = sequences,
                        .rows = qkv.from(q_width),
                        .pages = k_pages,
                        .tokens = tokens,
                        .cols = k_width,
                        .stride = row_width,
                        .to_stride = k_stride,
                        .more_rows = separate ? qkv.from(q_width + k_width) : Tensor(),
                        .more_pages = separate ? v_pages : Tensor(),
                        .more_cols = separate ? v_width : 0,
                        .more_to_stride = separate ? v_stride : 0});
  const Tensor out = bench.empty(dtype, {tokens, c.heads * c.value_dim});
  bench.run(PagedAttention{.sequences = sequences,
                           .tokens = tokens,
                           .heads = c.heads,
                           .kv_heads = c.kv_heads,
                           .head_dim = c.head_dim,
                           .value_dim = c.value_dim,
                           .scale = inputs.references[0].s.scale,
                           .window = c.window,
                           .chunk = c.chunk,
                           .score_cap = c.score_cap,
                           .q = qkv,
                           .k = k_pages,
                           .v = v_pages,
                           .q_stride = row_width,
                           .k_stride = k_stride,
                           .v_stride = v_stride,
                           .sinks = c.sinks ? bench.upload(inputs.sinks, dtype, {c.heads}) : Tensor(),
                           .out = out,
                           .workspace = {}});
  const Values all = bench.download(out);
  Paged result;
  const std::int64_t width = c.heads * c.value_dim;
  for (std::int64_t b = 0; b < batch; ++b) {
    result.out.emplace_back(all.begin() + static_cast<std::int64_t>(starts[b]) * width,
                            all.begin() + static_cast<std::int64_t>(starts[b + 1]) * width);
  }
  result.idle.assign(all.end() - kIdle * width, all.end());
  return result;
}

TEST(PagedAttention, MatchesReference) {
  for (const DeviceUnderTest& spec : devices_under_test()) {
    OperatorBench bench(spec);
    const std::vector<Case> all = cases();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Case& c = all[i];
      std::vector<std::size_t> every(c.sequences.size());
      std::iota(every.begin(), every.end(), 0);
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        SCOPED_TRACE("case " + std::to_string(i) + ", " + std::string(name_of(dtype)) + ", " + spec.name());
        const Inputs inputs(c, dtype);
        const Paged actual = run(bench, c, inputs, dtype, 7, every);
        for (std::size_t b = 0; b < every.size(); ++b) {
          EXPECT_LE(normalised_error(actual.out[b], inputs.references[b].out),
                    dtype == DType::kF32 ? 2e-6 : 1e-2)
              << "sequence " << b;
        }
        EXPECT_THAT(actual.idle, testing::Each(0.0));
      }
    }
  }
}

// The bits of a sequence's results do not depend on other sequences, on which pages it has, or on the number
// of threads.
TEST(PagedAttention, ASequenceDoesNotDependOnTheOthers) {
  OperatorBench bench, three({.threads = 3});
  for (const Case& c : cases()) {
    std::vector<std::size_t> every(c.sequences.size());
    std::iota(every.begin(), every.end(), 0);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Inputs inputs(c, dtype);
      const Paged together = run(bench, c, inputs, dtype, 7, every);
      EXPECT_EQ(run(three, c, inputs, dtype, 8, every).out, together.out);
      for (const std::size_t b : every) {
        EXPECT_EQ(run(bench, c, inputs, dtype, 9, {b}).out[0], together.out[b]) << b;
      }
    }
  }
}

// Appends three rows of latents of two sequences; a fourth row belongs to no sequence.
struct LatentCase {
  std::int64_t rank, shared;
  bool rotates, interleaved;
};

// Returns the bits of the pages.
std::vector<unsigned char> append_latents(OperatorBench& bench, const LatentCase& c, bool fused) {
  constexpr std::int64_t kTokens = 4, kPageSize = 64, kPages = 3;
  constexpr float kEpsilon = 1e-6F;
  const std::int64_t cols = c.rank + c.shared;
  const Values joined = random_values(kTokens * cols, 1);
  const Tensor rows = bench.upload(joined, DType::kBF16, {kTokens, cols});
  const Tensor norm = bench.upload(random_values(c.rank, 2), DType::kBF16, {c.rank});
  const Tensor table = bench.upload(random_values(100 * c.shared, 3), DType::kF32, {100, c.shared});
  const Tensor positions = bench.upload({64, 65, 9, 0}, DType::kI32, {kTokens});
  const Tensor pages = bench.zeros(DType::kBF16, {kPages * kPageSize, cols});
  PagedAppend call{.sequences = {.query_starts = bench.upload({0, 2, 3}, DType::kI32, {3}),
                                 .key_lengths = bench.upload({66, 10}, DType::kI32, {2}),
                                 .block_table = bench.upload({2, 0, 1, 0}, DType::kI32, {2, 2}),
                                 .page_size = kPageSize},
                   .rows = rows,
                   .pages = pages,
                   .tokens = kTokens,
                   .cols = cols,
                   .stride = cols,
                   .to_stride = cols};
  if (fused) {
    call.around = {.norm = norm, .eps = kEpsilon, .interleaved = c.interleaved};
    if (c.rotates) call.around.positions = positions, call.around.table = table;
    EXPECT_TRUE(is_taken(bench.device(), call));
    bench.run(call);
    return bench.bytes(pages);
  }
  const auto columns = [&](std::int64_t from, std::int64_t count) {
    Values part;
    for (std::int64_t row = 0; row < kTokens; ++row) {
      const auto begin = joined.begin() + row * cols + from;
      part.insert(part.end(), begin, begin + count);
    }
    return bench.upload(part, DType::kBF16, {kTokens, count});
  };
  const Tensor normed = bench.empty(DType::kBF16, {kTokens, c.rank});
  bench.run(RmsNormForward{.x = columns(0, c.rank),
                           .delta = {},
                           .weight = norm,
                           .sum = {},
                           .y = normed,
                           .rstd = bench.empty(DType::kF32, {kTokens}),
                           .eps = kEpsilon});
  const Tensor shared = columns(c.rank, c.shared);
  if (c.rotates) {
    bench.run(Rope{.x = shared,
                   .y = shared,
                   .positions = positions,
                   .table = table,
                   .heads = 1,
                   .head_dim = c.shared,
                   .rotary_dim = c.shared,
                   .interleaved = c.interleaved,
                   .inverse = false});
  }
  const auto append = [&](const Tensor& part, std::int64_t column) {
    call.rows = part, call.pages = pages.from(column);
    call.cols = call.stride = part.cols();
    bench.run(call);
  };
  append(normed, 0);
  append(shared, c.rank);
  return bench.bytes(pages);
}

TEST(PagedAppend, LatentsHaveTheBitsOfTheirOperatorsOnAGpu) {
  for (const DeviceUnderTest& spec : devices_under_test()) {
    if (spec.emulated_warp == 0 && spec.plugin.empty()) continue;
    SCOPED_TRACE(spec.name());
    OperatorBench bench(spec);
    for (const LatentCase& c :
         {LatentCase{512, 64, true, true}, {512, 64, true, false}, {24, 8, false, false}})
      EXPECT_EQ(append_latents(bench, c, true), append_latents(bench, c, false)) << c.rank;
  }
}

TEST(PagedAppend, LatentsAreTakenWhereItPays) {
  for (const DeviceUnderTest& spec : devices_under_test()) {
    SCOPED_TRACE(spec.name());
    OperatorBench bench(spec);
    const auto taken = [&](std::int64_t tokens, std::int64_t rank, DType dtype) {
      return is_taken(bench.device(), PagedAppend{.sequences = {.page_size = 64},
                                                  .rows = Tensor(nullptr, dtype, {tokens, rank + 64}),
                                                  .pages = Tensor(nullptr, dtype, {64, rank + 64}),
                                                  .tokens = tokens,
                                                  .cols = rank + 64,
                                                  .stride = rank + 64,
                                                  .to_stride = rank + 64,
                                                  .around = {.norm = Tensor(nullptr, dtype, {rank})}});
    };
    const bool gpu = spec.emulated_warp > 0 || !spec.plugin.empty();
    EXPECT_EQ(taken(1, 512, DType::kBF16), gpu);
    EXPECT_FALSE(taken(65, 512, DType::kBF16));  // many rows use separate operators
    EXPECT_FALSE(taken(1, 500, DType::kBF16));
    EXPECT_FALSE(taken(1, 4096, DType::kBF16));
    EXPECT_FALSE(taken(1, 512, DType::kF32));
  }
}

}  // namespace
}  // namespace primus::turbo::test
