// Attention on the CPU: the tile loops of FlashAttention-2 (Dao 2023) over products in fp32.
//
// Forward: one work item is a tile of queries of one head. Backward: probabilities are recomputed from the
// log-sum-exp. Each element of d_q, d_k, d_v is summed by one thread in a fixed order: d_k and d_v over
// heads, then query tiles; d_q over key tiles. Where sequences and heads are enough to keep the pool busy,
// one work item is a (sequence, key/value head) and each score tile is recomputed once; otherwise tiles of
// keys and tiles of queries are items of two separate passes, which recompute each score tile twice. Both
// ways give the same bits.
#include <cmath>
#include <limits>

#include "turbo/attention/cpu_tiles.h"
#include "turbo/cpu/register.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// Strided operands with the arithmetic of where a head's rows are.
template <class T>
struct Operand {
  T* data;
  std::int64_t stride, width;  // elements from token to token; columns of one head
  std::int64_t sequence_rows;  // rows from one sequence to the next
  T* at(std::int64_t sequence, std::int64_t head, std::int64_t row) const {
    return data + (sequence * sequence_rows + row) * stride + head * width;
  }
};

// ---- Forward
// -------------------------------------------------------------------------------------------------------

struct ForwardScratch {
  float *query_rows, *queries, *keys, *values, *scores, *out, *out_rows, *max, *sum, *correction;

  ForwardScratch(Carver& carver, const AttentionShape& s)
      : query_rows(carver.take<float>(kQueryTile * s.head_dim)),
        queries(carver.take<float>(s.head_dim * kQueryTile)),
        keys(carver.take<float>(kKeyTile * s.head_dim)),
        values(carver.take<float>(kKeyTile * s.value_dim)),
        scores(carver.take<float>(kKeyTile * kQueryTile)),
        out(carver.take<float>(s.value_dim * kQueryTile)),
        out_rows(carver.take<float>(kQueryTile * s.value_dim)),
        max(carver.take<float>(kQueryTile)),
        sum(carver.take<float>(kQueryTile)),
        correction(carver.take<float>(kQueryTile)) {}
};

// scores := exp(scale * scores - new maximum), and the running maximum, sum and correction factor of each
// query.
void softmax_update(std::int64_t keys, float scale, const ForwardScratch& w) {
  float tile_max[kQueryTile], tile_sum[kQueryTile];
  for (std::int64_t i = 0; i < kQueryTile; ++i) tile_max[i] = w.scores[i], tile_sum[i] = 0;
  for (std::int64_t j = 1; j < keys; ++j) {
    const float* row = w.scores + j * kQueryTile;
    PRIMUS_SIMD()
    for (std::int64_t i = 0; i < kQueryTile; ++i) tile_max[i] = row[i] > tile_max[i] ? row[i] : tile_max[i];
  }
  PRIMUS_SIMD()
  for (std::int64_t i = 0; i < kQueryTile; ++i) {
    const float max = tile_max[i] * scale > w.max[i] ? tile_max[i] * scale : w.max[i];
    w.correction[i] = PRIMUS_CPU_ISA::exp(w.max[i] - max);
    w.max[i] = max;
  }
  for (std::int64_t j = 0; j < keys; ++j) {
    float* row = w.scores + j * kQueryTile;
    PRIMUS_SIMD()
    for (std::int64_t i = 0; i < kQueryTile; ++i) {
      row[i] = PRIMUS_CPU_ISA::exp(multiply_add(row[i], scale, -w.max[i]));
      tile_sum[i] += row[i];
    }
  }
  PRIMUS_SIMD()
  for (std::int64_t i = 0; i < kQueryTile; ++i)
    w.sum[i] = multiply_add(w.sum[i], w.correction[i], tile_sum[i]);
}

template <class T>
void forward_tile(const AttentionShape& s, Operand<const T> q, Operand<const T> k, Operand<const T> v,
                  Operand<T> out, float* lse, std::int64_t sequence, std::int64_t head, std::int64_t tile,
                  const ForwardScratch& w) {
  const std::int64_t kv_head = head / (s.heads / s.kv_heads);
  const QueryTile queries = query_tile(s, tile);
  load_rows(q.at(sequence, head, queries.begin), q.stride, queries.size(), s.head_dim, w.query_rows,
            s.head_dim);
  transpose_queries(w.query_rows, s.head_dim, queries.size(), s.head_dim, w.queries);
  std::fill_n(w.out, s.value_dim * kQueryTile, 0.0F);
  std::fill_n(w.sum, kQueryTile, 0.0F);
  // Finite, so that a query that sees nothing of its first tile computes no inf - inf.
  std::fill_n(w.max, kQueryTile, -1e30F);

  for (std::int64_t t = queries.any.begin / kKeyTile; t * kKeyTile < queries.any.end; ++t) {
    const Range range = key_tile(t, queries.any);
    const std::int64_t keys = range.end - range.begin;
    load_rows(k.at(sequence, kv_head, range.begin), k.stride, keys, s.head_dim, w.keys, s.head_dim);
    load_rows(v.at(sequence, kv_head, range.begin), v.stride, keys, s.value_dim, w.values, s.value_dim);
    multiply(keys, kQueryTile, s.head_dim, {w.keys, s.head_dim, 1}, w.queries, kQueryTile, w.scores,
             kQueryTile);
    mask_scores(s, queries, range, -std::numeric_limits<float>::infinity(), w.scores);
    softmax_update(keys, s.scale, w);
    for (std::int64_t c = 0; c < s.value_dim; ++c) {
      float* row = w.out + c * kQueryTile;
      PRIMUS_SIMD()
      for (std::int64_t i = 0; i < kQueryTile; ++i) row[i] *= w.correction[i];
    }
    multiply_accumulate(s.value_dim, kQueryTile, keys, {w.values, 1, s.value_dim}, w.scores, kQueryTile,
                        w.out, kQueryTile);
  }

  for (std::int64_t i = 0; i < queries.size(); ++i) {
    const float inverse = 1.0F / w.sum[i];
    for (std::int64_t c = 0; c < s.value_dim; ++c)
      w.out_rows[i * s.value_dim + c] = w.out[c * kQueryTile + i] * inverse;
    if (lse) {
      lse[(head * s.batch + sequence) * s.seq_q + queries.begin + i] = w.max[i] + std::log(w.sum[i]);
    }
  }
  store_rows(w.out_rows, s.value_dim, queries.size(), s.value_dim, out.at(sequence, head, queries.begin),
             out.stride);
}

std::int64_t forward_scratch_bytes(const AttentionShape& s) {
  Carver carver(nullptr);
  ForwardScratch scratch(carver, s);
  return carver.used();
}

void attention_forward(CpuContext& context, const AttentionForward& call) {
  const AttentionShape& s = call.shape;
  const std::int64_t query_tiles = tiles(s.seq_q, kQueryTile);
  auto* workspace = context.data<std::byte>(call.workspace);
  const std::int64_t scratch_bytes = forward_scratch_bytes(s);
  float* lse = call.lse.absent() ? nullptr : context.data<float>(call.lse);
  with_float_type(call.q.dtype, [&](auto type) {
    using T = decltype(type);
    const Operand<const T> q{context.data<const T>(call.q), call.q_stride, s.head_dim, s.seq_q};
    const Operand<const T> k{context.data<const T>(call.k), call.k_stride, s.head_dim, s.capacity_k};
    const Operand<const T> v{context.data<const T>(call.v), call.v_stride, s.value_dim, s.capacity_k};
    const Operand<T> out{context.data<T>(call.out), s.heads * s.value_dim, s.value_dim, s.seq_q};
    context.pool().parallel_for(
        s.batch * s.heads * query_tiles, 1, [&](std::int64_t begin, std::int64_t, int thread) {
          Carver carver(workspace + thread * scratch_bytes);
          const ForwardScratch scratch(carver, s);
          // The last tiles see the most keys: they go first, and the short ones fill the gaps at the end.
          const std::int64_t tile = query_tiles - 1 - begin / (s.batch * s.heads);
          const std::int64_t sequence = begin % (s.batch * s.heads) / s.heads, head = begin % s.heads;
          forward_tile(s, q, k, v, out, lse, sequence, head, tile, scratch);
        });
  });
}

std::int64_t attention_forward_workspace(CpuContext& context, const AttentionForward& call) {
  return context.pool().size() * forward_scratch_bytes(call.shape);
}

// ---- Backward
// ------------------------------------------------------------------------------------------------------

template <class T>
struct BackwardOperands {
  Operand<const T> q, k, v, out, d_out;
  Operand<T> d_q, d_k, d_v;
  const float* lse;  // [heads, batch * seq]
  float* delta;      // likewise: the dot product of out and d_out
};

struct BackwardScratch {
  std::int64_t head_cols, value_cols;                               // head_dim and value_dim in whole vectors
  float *query_rows, *queries, *d_out_rows, *d_outs, *lse, *delta;  // of the current query tile
  float *keys, *values;                                             // of the current key tile
  float *probabilities, *d_scores;                                  // [key][query]
  float *d_queries, *d_keys, *d_values;

  BackwardScratch(Carver& carver, const AttentionShape& s, std::int64_t accumulated_keys)
      : head_cols(padded(s.head_dim)),
        value_cols(padded(s.value_dim)),
        query_rows(carver.take<float>(kQueryTile * head_cols)),
        queries(carver.take<float>(s.head_dim * kQueryTile)),
        d_out_rows(carver.take<float>(kQueryTile * value_cols)),
        d_outs(carver.take<float>(s.value_dim * kQueryTile)),
        lse(carver.take<float>(kQueryTile)),
        delta(carver.take<float>(kQueryTile)),
        keys(carver.take<float>(kKeyTile * head_cols)),
        values(carver.take<float>(kKeyTile * value_cols)),
        probabilities(carver.take<float>(kKeyTile * kQueryTile)),
        d_scores(carver.take<float>(kKeyTile * kQueryTile)),
        d_queries(carver.take<float>(kQueryTile * head_cols)),
        d_keys(carver.take<float>(accumulated_keys * head_cols)),
        d_values(carver.take<float>(accumulated_keys * value_cols)) {}
};

template <class T>
class Backward {
 public:
  Backward(const AttentionShape& shape, const BackwardOperands<T>& operands, const BackwardScratch& scratch)
      : s(shape), x(operands), w(scratch) {}

  // Everything of one key/value head.
  void whole_head(std::int64_t sequence, std::int64_t kv_head) {
    clear_key_gradients(s.seq_k);
    for (std::int64_t head = kv_head * group(); head < (kv_head + 1) * group(); ++head) {
      for (std::int64_t i = 0; i < tiles(s.seq_q, kQueryTile); ++i) {
        const QueryTile queries = load_queries(sequence, head, i);
        std::fill_n(w.d_queries, kQueryTile * w.head_cols, 0.0F);
        for (std::int64_t j = queries.any.begin / kKeyTile; j * kKeyTile < queries.any.end; ++j) {
          const Range keys = key_tile(j, queries.any);
          load_keys(sequence, kv_head, keys);
          score_gradients(queries, keys);
          add_key_gradients(queries, keys, keys.begin);
          add_query_gradients(queries, keys);
        }
        store_query_gradients(sequence, head, queries);
      }
    }
    store_key_gradients(sequence, kv_head, {0, s.seq_k});
  }

  // d_k and d_v of one key tile.
  void key_gradients(std::int64_t sequence, std::int64_t kv_head, std::int64_t tile) {
    const Range whole = {tile * kKeyTile, std::min((tile + 1) * kKeyTile, s.seq_k)};
    clear_key_gradients(whole.end - whole.begin);
    for (std::int64_t head = kv_head * group(); head < (kv_head + 1) * group(); ++head) {
      for (std::int64_t i = 0; i < tiles(s.seq_q, kQueryTile); ++i) {
        const Range any = query_tile(s, i).any;
        if (any.end <= whole.begin || any.begin >= whole.end) continue;
        const QueryTile queries = load_queries(sequence, head, i);
        const Range keys = key_tile(tile, queries.any);
        load_keys(sequence, kv_head, keys);
        score_gradients(queries, keys);
        add_key_gradients(queries, keys, 0);
      }
    }
    store_key_gradients(sequence, kv_head, whole);
  }

  // d_q of one query tile.
  void query_gradients(std::int64_t sequence, std::int64_t head, std::int64_t tile) {
    const QueryTile queries = load_queries(sequence, head, tile);
    std::fill_n(w.d_queries, kQueryTile * w.head_cols, 0.0F);
    for (std::int64_t j = queries.any.begin / kKeyTile; j * kKeyTile < queries.any.end; ++j) {
      const Range keys = key_tile(j, queries.any);
      load_keys(sequence, head / group(), keys);
      score_gradients(queries, keys);
      add_query_gradients(queries, keys);
    }
    store_query_gradients(sequence, head, queries);
  }

 private:
  std::int64_t group() const { return s.heads / s.kv_heads; }

  QueryTile load_queries(std::int64_t sequence, std::int64_t head, std::int64_t tile) {
    const QueryTile queries = query_tile(s, tile);
    load_rows(x.q.at(sequence, head, queries.begin), x.q.stride, queries.size(), s.head_dim, w.query_rows,
              w.head_cols);
    load_rows(x.d_out.at(sequence, head, queries.begin), x.d_out.stride, queries.size(), s.value_dim,
              w.d_out_rows, w.value_cols);
    transpose_queries(w.query_rows, w.head_cols, queries.size(), s.head_dim, w.queries);
    transpose_queries(w.d_out_rows, w.value_cols, queries.size(), s.value_dim, w.d_outs);
    const std::int64_t row = (head * s.batch + sequence) * s.seq_q + queries.begin;
    for (std::int64_t i = 0; i < kQueryTile; ++i) {
      w.lse[i] = i < queries.size() ? x.lse[row + i] : 0;
      w.delta[i] = i < queries.size() ? x.delta[row + i] : 0;
    }
    return queries;
  }

  void load_keys(std::int64_t sequence, std::int64_t kv_head, Range keys) {
    const std::int64_t rows = keys.end - keys.begin;
    load_rows(x.k.at(sequence, kv_head, keys.begin), x.k.stride, rows, s.head_dim, w.keys, w.head_cols);
    load_rows(x.v.at(sequence, kv_head, keys.begin), x.v.stride, rows, s.value_dim, w.values, w.value_cols);
  }

  // probabilities = exp(scale * q·k - lse); d_scores = scale * probabilities * (d_out·v - delta).
  void score_gradients(const QueryTile& queries, Range range) {
    const std::int64_t keys = range.end - range.begin;
    multiply(keys, kQueryTile, s.head_dim, {w.keys, w.head_cols, 1}, w.queries, kQueryTile, w.probabilities,
             kQueryTile);
    multiply(keys, kQueryTile, s.value_dim, {w.values, w.value_cols, 1}, w.d_outs, kQueryTile, w.d_scores,
             kQueryTile);
    mask_scores(s, queries, range, -std::numeric_limits<float>::infinity(), w.probabilities);
    const float scale = s.scale;
    for (std::int64_t j = 0; j < keys; ++j) {
      float *p = w.probabilities + j * kQueryTile, *d = w.d_scores + j * kQueryTile;
      PRIMUS_SIMD()
      for (std::int64_t i = 0; i < kQueryTile; ++i) {
        p[i] = PRIMUS_CPU_ISA::exp(multiply_add(p[i], scale, -w.lse[i]));
        d[i] = p[i] * ((d[i] - w.delta[i]) * scale);
      }
    }
  }

  void add_key_gradients(const QueryTile& queries, Range range, std::int64_t row) {
    const std::int64_t keys = range.end - range.begin;
    multiply_accumulate(keys, w.value_cols, queries.size(), {w.probabilities, kQueryTile, 1}, w.d_out_rows,
                        w.value_cols, w.d_values + row * w.value_cols, w.value_cols);
    multiply_accumulate(keys, w.head_cols, queries.size(), {w.d_scores, kQueryTile, 1}, w.query_rows,
                        w.head_cols, w.d_keys + row * w.head_cols, w.head_cols);
  }

  void add_query_gradients(const QueryTile& queries, Range range) {
    multiply_accumulate(queries.size(), w.head_cols, range.end - range.begin, {w.d_scores, 1, kQueryTile},
                        w.keys, w.head_cols, w.d_queries, w.head_cols);
  }

  void clear_key_gradients(std::int64_t rows) {
    std::fill_n(w.d_keys, rows * w.head_cols, 0.0F);
    std::fill_n(w.d_values, rows * w.value_cols, 0.0F);
  }

  void store_key_gradients(std::int64_t sequence, std::int64_t kv_head, Range keys) {
    const std::int64_t rows = keys.end - keys.begin;
    store_rows(w.d_keys, w.head_cols, rows, s.head_dim, x.d_k.at(sequence, kv_head, keys.begin),
               x.d_k.stride);
    store_rows(w.d_values, w.value_cols, rows, s.value_dim, x.d_v.at(sequence, kv_head, keys.begin),
               x.d_v.stride);
  }

  void store_query_gradients(std::int64_t sequence, std::int64_t head, const QueryTile& queries) {
    store_rows(w.d_queries, w.head_cols, queries.size(), s.head_dim, x.d_q.at(sequence, head, queries.begin),
               x.d_q.stride);
  }

  const AttentionShape& s;
  const BackwardOperands<T>& x;
  const BackwardScratch& w;
};

// Whole heads as work items, when there are enough of them for every thread to get about the same number.
bool whole_heads(const AttentionShape& s, int threads) {
  return threads == 1 || s.batch * s.kv_heads >= 4 * static_cast<std::int64_t>(threads);
}

std::int64_t accumulated_keys(const AttentionShape& s, int threads) {
  return whole_heads(s, threads) ? s.seq_k : kKeyTile;
}

std::int64_t backward_scratch_bytes(const AttentionShape& s, int threads) {
  Carver carver(nullptr);
  BackwardScratch scratch(carver, s, accumulated_keys(s, threads));
  return carver.used();
}

template <class T>
void compute_delta(CpuContext& context, const AttentionShape& s, const BackwardOperands<T>& x) {
  parallel_ranges(
      context, s.heads * s.batch * s.seq_q, 2 * s.value_dim * static_cast<std::int64_t>(sizeof(T)),
      [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          const std::int64_t head = row / (s.batch * s.seq_q);
          const T* out = x.out.at(0, head, row % (s.batch * s.seq_q));
          const T* d_out = x.d_out.at(0, head, row % (s.batch * s.seq_q));
          x.delta[row] =
              sum_terms(s.value_dim, [=](std::int64_t c) { return to_float(out[c]) * to_float(d_out[c]); });
        }
      });
}

template <class T>
void run_backward(CpuContext& context, const AttentionShape& s, const BackwardOperands<T>& x,
                  std::byte* workspace) {
  compute_delta(context, s, x);
  const int threads = context.pool().size();
  const std::int64_t scratch_bytes = backward_scratch_bytes(s, threads);
  // body(backward, sequence, head, tile) over all of them, for a number of heads and of tiles.
  const auto for_each = [&](std::int64_t heads, std::int64_t tile_count, auto body) {
    context.pool().parallel_for(
        s.batch * heads * tile_count, 1, [&](std::int64_t item, std::int64_t, int thread) {
          Carver carver(workspace + thread * scratch_bytes);
          const BackwardScratch scratch(carver, s, accumulated_keys(s, threads));
          Backward<T> backward(s, x, scratch);
          body(backward, item % (s.batch * heads) / heads, item % heads, item / (s.batch * heads));
        });
  };
  using Index = std::int64_t;
  if (whole_heads(s, threads)) {
    for_each(s.kv_heads, 1,
             [](Backward<T>& b, Index sequence, Index head, Index) { b.whole_head(sequence, head); });
    return;
  }
  // The first key tiles and the last query tiles meet the most of the others: they go first.
  const std::int64_t query_tiles = tiles(s.seq_q, kQueryTile);
  for_each(s.kv_heads, tiles(s.seq_k, kKeyTile), [](Backward<T>& b, Index sequence, Index head, Index tile) {
    b.key_gradients(sequence, head, tile);
  });
  for_each(s.heads, query_tiles, [&](Backward<T>& b, Index sequence, Index head, Index tile) {
    b.query_gradients(sequence, head, query_tiles - 1 - tile);
  });
}

std::int64_t delta_bytes(const AttentionShape& s) {
  Carver carver(nullptr);
  carver.take<float>(s.heads * s.batch * s.seq_q);
  return carver.used();
}

void attention_backward(CpuContext& context, const AttentionBackward& call) {
  const AttentionShape& s = call.shape;
  auto* workspace = context.data<std::byte>(call.workspace);
  with_float_type(call.q.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t out_stride = s.heads * s.value_dim;
    const BackwardOperands<T> operands{{context.data<const T>(call.q), call.q_stride, s.head_dim, s.seq_q},
                                       {context.data<const T>(call.k), call.k_stride, s.head_dim, s.seq_k},
                                       {context.data<const T>(call.v), call.v_stride, s.value_dim, s.seq_k},
                                       {context.data<const T>(call.out), out_stride, s.value_dim, s.seq_q},
                                       {context.data<const T>(call.d_out), out_stride, s.value_dim, s.seq_q},
                                       {context.data<T>(call.d_q), call.d_q_stride, s.head_dim, s.seq_q},
                                       {context.data<T>(call.d_k), call.d_k_stride, s.head_dim, s.seq_k},
                                       {context.data<T>(call.d_v), call.d_v_stride, s.value_dim, s.seq_k},
                                       context.data<const float>(call.lse),
                                       reinterpret_cast<float*>(workspace)};
    run_backward(context, s, operands, workspace + delta_bytes(s));
  });
}

std::int64_t attention_backward_workspace(CpuContext& context, const AttentionBackward& call) {
  const int threads = context.pool().size();
  return delta_bytes(call.shape) + threads * backward_scratch_bytes(call.shape, threads);
}

}  // namespace

void register_attention(KernelTable& table) {
  table.add<AttentionForward, CpuContext, &attention_forward, &attention_forward_workspace>();
  table.add<AttentionBackward, CpuContext, &attention_backward, &attention_backward_workspace>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
