// Backward attention. Probabilities are recomputed from the log-sum-exp, tile by tile (FlashAttention-2, Dao
// 2023).
//
// Each element of d_q, d_k and d_v is summed by one thread in a fixed order: d_k and d_v over heads, then
// tiles of queries; d_q over tiles of keys. If a thread processes a complete head at a time, each tile of
// scores is computed once. Otherwise there are two passes. In one pass, threads process tiles of keys; in the
// other pass, tiles of queries. Each pass computes every tile of scores once, and sums in the same order.
#include <algorithm>
#include <cmath>
#include <limits>

#include "turbo/attention/cpu_attention.h"
#include "turbo/attention/cpu_plan.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// A gradient tensor, which has the operands' type T or fp32.
template <class T>
struct Gradient {
  Operand<T> rows;  // either `rows` or the fp32 operand has data
  Operand<float> fp32;
  bool accumulate;

  // Writes rows of one head, starting at `row`. `from` holds columns [cols.begin, cols.end) of these rows.
  void put(const float* from, std::int64_t ld, std::int64_t sequence, std::int64_t head, std::int64_t row,
           std::int64_t count, Range cols) const {
    if (fp32.data) {
      put(from, ld, fp32.at(sequence, head, row) + cols.begin, fp32.stride, count, cols.size());
    } else {
      put(from, ld, rows.at(sequence, head, row) + cols.begin, rows.stride, count, cols.size());
    }
  }

 private:
  template <class Element>
  void put(const float* from, std::int64_t ld, Element* to, std::int64_t stride, std::int64_t count,
           std::int64_t cols) const {
    accumulate ? add_rows(from, ld, count, cols, to, stride) : store_rows(from, ld, count, cols, to, stride);
  }
};

template <class T>
Gradient<T> gradient(CpuContext& context, const Tensor& tensor, std::int64_t stride, std::int64_t width,
                     std::int64_t sequence_rows, bool accumulate) {
  const bool fp32 = tensor.dtype == DType::kF32;
  return {{fp32 ? nullptr : context.data<T>(tensor), stride, width, sequence_rows},
          {fp32 ? context.data<float>(tensor) : nullptr, stride, width, sequence_rows},
          accumulate};
}

template <class Tiles>
struct BackwardOperands {
  using T = typename Tiles::Source;
  Operand<const T> q, k, v, out, d_out;
  Gradient<T> d_q, d_k, d_v;
  const float* lse;               // [heads, batch * seq]
  float* delta;                   // [heads, batch * seq]: dot products of out and d_out
  const std::int32_t* first_key;  // [batch * seq] or null
};

// The packed keys and values of one (sequence, key/value head), and sums of their gradients.
template <class Tiles>
class BackwardKeys {
 public:
  using Element = typename Tiles::Element;

  BackwardKeys(Carver& carver, const Tiles& engine, const AttentionShape& shape)
      : tiles_(engine),
        s(shape),
        rows_(tiles(s.seq_k) * kTile),
        keys_(carver.take<Element>(tiles(s.seq_k) * engine.left_elements(s.head_dim))),
        transposed_keys_(Tiles::kLeftIsLeftTransposed
                             ? keys_
                             : carver.take<Element>(tiles(s.seq_k) * engine.left_elements(s.head_dim))),
        values_(carver.take<Element>(tiles(s.seq_k) * engine.left_elements(s.value_dim))),
        d_keys_(carver.take<float>(rows_ * width(s.head_dim))),
        d_values_(carver.take<float>(rows_ * width(s.value_dim))) {}

  Element* keys(std::int64_t tile) const { return keys_ + tile * tiles_.left_elements(s.head_dim); }
  Element* transposed_keys(std::int64_t tile) const {
    return transposed_keys_ + tile * tiles_.left_elements(s.head_dim);
  }
  Element* values(std::int64_t tile) const { return values_ + tile * tiles_.left_elements(s.value_dim); }
  float* d_keys() const { return d_keys_; }
  float* d_values() const { return d_values_; }
  std::int64_t rows() const { return rows_; }  // number of rows of the gradient sums

  void pack(const BackwardOperands<Tiles>& x, std::int64_t sequence, std::int64_t kv_head,
            std::int64_t tile) const {
    const std::int64_t first = tile * kTile, count = std::min(kTile, s.seq_k - first);
    const auto* k = x.k.at(sequence, kv_head, first);
    tiles_.pack_left(k, x.k.stride, count, s.head_dim, keys(tile));
    if constexpr (!Tiles::kLeftIsLeftTransposed) {
      tiles_.pack_left_transposed(k, x.k.stride, count, s.head_dim, transposed_keys(tile));
    }
    tiles_.pack_left(x.v.at(sequence, kv_head, first), x.v.stride, count, s.value_dim, values(tile));
  }

  void clear(std::int64_t tile) const {
    for_each_panel(s.head_dim, d_keys_, tile,
                   [&](float* panel, Range) { std::fill_n(panel, kTile * panel_width(s.head_dim), 0.0F); });
    for_each_panel(s.value_dim, d_values_, tile,
                   [&](float* panel, Range) { std::fill_n(panel, kTile * panel_width(s.value_dim), 0.0F); });
  }

  void store(const BackwardOperands<Tiles>& x, std::int64_t sequence, std::int64_t kv_head,
             std::int64_t tile) const {
    const std::int64_t first = tile * kTile, count = std::min(kTile, s.seq_k - first);
    for_each_panel(s.head_dim, d_keys_, tile, [&](float* panel, Range cols) {
      x.d_k.put(panel, panel_width(s.head_dim), sequence, kv_head, first, count, cols);
    });
    for_each_panel(s.value_dim, d_values_, tile, [&](float* panel, Range cols) {
      x.d_v.put(panel, panel_width(s.value_dim), sequence, kv_head, first, count, cols);
    });
  }

 private:
  std::int64_t panel_width(std::int64_t dim) const { return tiles_.panel_width(dim); }
  std::int64_t width(std::int64_t dim) const { return round_up(dim, panel_width(dim)); }

  // Calls body(the tile's rows within a panel, number of valid columns of the panel) for each panel.
  template <class Body>
  void for_each_panel(std::int64_t dim, float* sums, std::int64_t tile, Body body) const {
    const std::int64_t panel = panel_width(dim);
    for (std::int64_t col = 0; col < dim; col += panel) {
      body(sums + col * rows_ + tile * kTile * panel, Range{col, std::min(col + panel, dim)});
    }
  }

  const Tiles& tiles_;
  const AttentionShape& s;
  std::int64_t rows_;
  Element *keys_, *transposed_keys_, *values_;
  float *d_keys_, *d_values_;
};

// The work of one thread, which processes one tile of queries at a time.
template <class Tiles>
class Backward {
 public:
  using Element = typename Tiles::Element;

  Backward(Carver& carver, const Tiles& engine, const AttentionShape& shape)
      : tiles_(engine),
        s(shape),
        queries_(carver.take<Element>(engine.right_elements(s.head_dim))),
        query_columns_(carver.take<Element>(engine.columns_elements(s.head_dim))),
        d_outs_(carver.take<Element>(engine.right_elements(s.value_dim))),
        d_out_columns_(carver.take<Element>(engine.columns_elements(s.value_dim))),
        lse_(carver.take<float>(kTile)),
        delta_(carver.take<float>(kTile)),
        scores_(carver.take<float>(kTile * kTile)),
        d_probabilities_(carver.take<float>(kTile * kTile)),
        d_queries_(carver.take<float>(engine.transposed_rows(s.head_dim) * kTile)),
        d_query_rows_(carver.take<float>(kTile * s.head_dim)) {
    if constexpr (Tiles::kScoresAreLeftAndRight) {
      probabilities_ = scores_;
      d_scores_ = d_scores_right_ = d_probabilities_;
    } else {
      probabilities_ = carver.take<Element>(kTile * kTile);
      d_scores_ = carver.take<Element>(kTile * kTile);
      d_scores_right_ = carver.take<Element>(kTile * kTile);
    }
  }

  // To process a tile of queries, call load(), then process tiles of keys in ascending order, then call
  // store().
  void load(const BackwardOperands<Tiles>& x, std::int64_t sequence, std::int64_t head,
            const Queries& queries) const {
    const auto* q = x.q.at(sequence, head, queries.begin);
    const auto* d_out = x.d_out.at(sequence, head, queries.begin);
    tiles_.pack_right(q, x.q.stride, queries.size(), s.head_dim, queries_);
    tiles_.pack_columns(q, x.q.stride, queries.size(), s.head_dim, query_columns_);
    tiles_.pack_right(d_out, x.d_out.stride, queries.size(), s.value_dim, d_outs_);
    tiles_.pack_columns(d_out, x.d_out.stride, queries.size(), s.value_dim, d_out_columns_);
    const std::int64_t row = (head * s.batch + sequence) * s.seq_q + queries.begin;
    for (std::int64_t i = 0; i < kTile; ++i) {
      lse_[i] = i < queries.size() ? x.lse[row + i] * kLog2E : 0;
      // A query that sees no key has an lse and scores of -infinity. lse becomes 0, as -inf - -inf is NaN.
      if (lse_[i] == -std::numeric_limits<float>::infinity()) lse_[i] = 0;
      delta_[i] = i < queries.size() ? x.delta[row + i] : 0;
    }
    std::fill_n(d_queries_, tiles_.transposed_rows(s.head_dim) * kTile, 0.0F);
  }

  template <bool kKeyGradients, bool kQueryGradients>
  void add(const BackwardKeys<Tiles>& keys, const Visibility& visibility, const Queries& queries,
           std::int64_t key_tile) const {
    for_each_strip(visibility, queries, key_tile, Tiles::kLaneBlock, Tiles::kKeyBlock,
                   [&](const Strip& strip) {
                     tiles_.score(strip, s.head_dim, keys.keys(key_tile), queries_, scores_);
                     tiles_.score(strip, s.value_dim, keys.values(key_tile), d_outs_, d_probabilities_);
                     cap_scores(s, strip, scores_);
                     mask_scores(visibility, queries, key_tile, strip, scores_);
                     score_gradients<kKeyGradients, kQueryGradients>(strip);
                     if constexpr (kKeyGradients) {
                       tiles_.add_by_key(strip, s.value_dim, probabilities_, d_out_columns_, keys.d_values(),
                                         key_tile * kTile, keys.rows());
                       tiles_.add_by_key(strip, s.head_dim, d_scores_, query_columns_, keys.d_keys(),
                                         key_tile * kTile, keys.rows());
                     }
                     if constexpr (kQueryGradients) {
                       tiles_.add_transposed(strip, s.head_dim, keys.transposed_keys(key_tile),
                                             d_scores_right_, d_queries_);
                     }
                   });
  }

  void store(const BackwardOperands<Tiles>& x, std::int64_t sequence, std::int64_t head,
             const Queries& queries) const {
    transpose(d_queries_, kTile, s.head_dim, queries.size(), d_query_rows_, s.head_dim);
    x.d_q.put(d_query_rows_, s.head_dim, sequence, head, queries.begin, queries.size(), {0, s.head_dim});
  }

 private:
  // probabilities = exp(scale * q·k - lse); d_scores = scale * probabilities * (d_out·v - delta), times the
  // derivative of the soft cap.
  template <bool kKeyGradients, bool kQueryGradients>
  void score_gradients(const Strip& strip) const {
    const float scale = s.scale, base2_scale = score_scale(s) * kLog2E;
    for (std::int64_t lane = strip.lanes.begin; lane < strip.lanes.end; lane += kGroup) {
      const float *lse = lse_ + lane, *delta = delta_ + lane;
      for (std::int64_t key = strip.keys.begin; key < strip.keys.end; key += 2) {
        float p[2][kGroup], d[2][kGroup];
        for (int odd = 0; odd < 2; ++odd) {
          const float* score = scores_ + (key + odd) * kTile + lane;
          const float* d_probability = d_probabilities_ + (key + odd) * kTile + lane;
          PRIMUS_SIMD()
          for (int i = 0; i < kGroup; ++i) {
            p[odd][i] = exp2_flushed(multiply_add(score[i], base2_scale, -lse[i]));
            d[odd][i] = p[odd][i] * ((d_probability[i] - delta[i]) * scale);
          }
          if (s.score_cap > 0) multiply_by_slope(score, d[odd]);
        }
        if constexpr (kKeyGradients) {
          tiles_.put_left(key, lane, p[0], p[1], probabilities_);
          tiles_.put_left(key, lane, d[0], d[1], d_scores_);
        }
        if constexpr (kQueryGradients && !(kKeyGradients && Tiles::kScoresAreLeftAndRight)) {
          tiles_.put_right(key, lane, d[0], d[1], d_scores_right_);
        }
      }
    }
  }

  // Multiplies the gradients by the derivative of tanh. The scores are the values of tanh. Gradients of
  // masked pairs are 0.
  PRIMUS_INLINE static void multiply_by_slope(const float* score, float* d) {
    PRIMUS_SIMD()
    for (int i = 0; i < kGroup; ++i) {
      const float t = score[i] < -1.0F ? -1.0F : score[i];
      d[i] *= (1.0F - t) * (1.0F + t);
    }
  }

  const Tiles& tiles_;
  const AttentionShape& s;
  Element *queries_, *query_columns_, *d_outs_, *d_out_columns_;
  float *lse_, *delta_;                                   // lse / ln 2
  float *scores_, *d_probabilities_;                      // [key][query]
  Element *probabilities_, *d_scores_, *d_scores_right_;  // the same matrices, packed as operands
  float *d_queries_, *d_query_rows_;                      // [head_dim][query] and [query][head_dim]
};

template <class Tiles>
using BackwardPlan = Plan<Tiles, Backward<Tiles>, BackwardKeys<Tiles>>;

template <class Tiles>
void compute_delta(CpuContext& context, const AttentionShape& s, const BackwardOperands<Tiles>& x) {
  const std::int64_t tokens = s.batch * s.seq_q;
  parallel_ranges(context, s.heads * tokens, 4 * s.value_dim, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const auto* out = x.out.at(0, row / tokens, row % tokens);
      const auto* d_out = x.d_out.at(0, row / tokens, row % tokens);
      x.delta[row] =
          sum_terms(s.value_dim, [=](std::int64_t c) { return to_float(out[c]) * to_float(d_out[c]); });
    }
  });
}

template <class Tiles>
void run_backward(ThreadPool& pool, const Tiles& engine, const AttentionShape& s,
                  const BackwardOperands<Tiles>& x, std::byte* workspace) {
  using Index = std::int64_t;
  using Worker = Backward<Tiles>;
  const BackwardPlan<Tiles> plan(engine, s, pool.size(), workspace);
  const Index query_tiles = tiles(s.seq_q), key_tiles = tiles(s.seq_k), group = s.heads / s.kv_heads;
  if (plan.whole_heads()) {
    plan.for_each(pool, s.kv_heads, 1,
                  [&](const Worker& worker, int thread, Index sequence, Index kv_head, Index) {
                    const BackwardKeys<Tiles> keys = plan.keys(thread);
                    const Visibility visibility(s, x.first_key, sequence);
                    for (Index t = 0; t < key_tiles; ++t) keys.pack(x, sequence, kv_head, t), keys.clear(t);
                    for (Index head = kv_head * group; head < (kv_head + 1) * group; ++head) {
                      for (Index i = 0; i < query_tiles; ++i) {
                        const Queries queries = visibility.tile(i);
                        worker.load(x, sequence, head, queries);
                        for (Index t = queries.first_key_tile(); t < queries.end_key_tile(); ++t) {
                          worker.template add<true, true>(keys, visibility, queries, t);
                        }
                        worker.store(x, sequence, head, queries);
                      }
                    }
                    for (Index t = 0; t < key_tiles; ++t) keys.store(x, sequence, kv_head, t);
                  });
    return;
  }
  const auto keys_of = [&](Index sequence, Index kv_head) {
    return plan.keys(sequence * s.kv_heads + kv_head);
  };
  plan.for_each(pool, s.kv_heads, key_tiles,
                [&](const Worker&, int, Index sequence, Index kv_head, Index tile) {
                  keys_of(sequence, kv_head).pack(x, sequence, kv_head, tile);
                  keys_of(sequence, kv_head).clear(tile);
                });
  // The first tiles of keys and the last tiles of queries run first, because they have the most visible
  // pairs.
  plan.for_each(pool, s.kv_heads, key_tiles,
                [&](const Worker& worker, int, Index sequence, Index kv_head, Index tile) {
                  const BackwardKeys<Tiles> keys = keys_of(sequence, kv_head);
                  const Visibility visibility(s, x.first_key, sequence);
                  for (Index head = kv_head * group; head < (kv_head + 1) * group; ++head) {
                    for (Index i = 0; i < query_tiles; ++i) {
                      const Queries queries = visibility.tile(i);
                      if (tile < queries.first_key_tile() || tile >= queries.end_key_tile()) continue;
                      worker.load(x, sequence, head, queries);
                      worker.template add<true, false>(keys, visibility, queries, tile);
                    }
                  }
                  keys.store(x, sequence, kv_head, tile);
                });
  plan.for_each(pool, s.heads, query_tiles,
                [&](const Worker& worker, int, Index sequence, Index head, Index tile) {
                  const BackwardKeys<Tiles> keys = keys_of(sequence, head / group);
                  const Visibility visibility(s, x.first_key, sequence);
                  const Queries queries = visibility.tile(query_tiles - 1 - tile);
                  worker.load(x, sequence, head, queries);
                  for (Index t = queries.first_key_tile(); t < queries.end_key_tile(); ++t) {
                    worker.template add<false, true>(keys, visibility, queries, t);
                  }
                  worker.store(x, sequence, head, queries);
                });
}

// The log-sum-exp over two key ranges, and the fraction of the total that each range contributes.
struct MergedSums {
  float lse, a, b;
  MergedSums(float lse_a, float lse_b) {
    const float max = std::max(lse_a, lse_b);
    if (max == -std::numeric_limits<float>::infinity()) {  // no key of either range is visible
      lse = max, a = 1, b = 0;
      return;
    }
    const float weight_a = std::exp(lse_a - max), weight_b = std::exp(lse_b - max);
    a = weight_a / (weight_a + weight_b);
    b = weight_b / (weight_a + weight_b);
    lse = max + std::log(weight_a + weight_b);
  }
};

std::int64_t delta_bytes(const AttentionShape& s) {
  Carver carver(nullptr);
  carver.take<float>(s.heads * s.batch * s.seq_q);
  return carver.used();
}

}  // namespace

void attention_backward(CpuContext& context, const AttentionBackward& call) {
  const AttentionShape& s = call.shape;
  if (s.batch * (s.seq_q + s.seq_k) == 0) return;
  auto* workspace = context.data<std::byte>(call.workspace);
  with_tiles(call.q.dtype, [&](const auto& engine) {
    using Tiles = std::decay_t<decltype(engine)>;
    using T = typename Tiles::Source;
    const std::int64_t out_stride = s.heads * s.value_dim;
    const BackwardOperands<Tiles> operands{
        {context.data<const T>(call.q), call.q_stride, s.head_dim, s.seq_q},
        {context.data<const T>(call.k), call.k_stride, s.head_dim, s.capacity_k},
        {context.data<const T>(call.v), call.v_stride, s.value_dim, s.capacity_k},
        {context.data<const T>(call.out), out_stride, s.value_dim, s.seq_q},
        {context.data<const T>(call.d_out), out_stride, s.value_dim, s.seq_q},
        gradient<T>(context, call.d_q, call.d_q_stride, s.head_dim, s.seq_q, call.accumulate_d_q),
        gradient<T>(context, call.d_k, call.d_k_stride, s.head_dim, s.capacity_k, call.accumulate_d_kv),
        gradient<T>(context, call.d_v, call.d_v_stride, s.value_dim, s.capacity_k, call.accumulate_d_kv),
        context.data<const float>(call.lse),
        reinterpret_cast<float*>(workspace),
        call.first_key.absent() ? nullptr : context.data<const std::int32_t>(call.first_key)};
    compute_delta(context, s, operands);
    run_backward(context.pool(), engine, s, operands, workspace + delta_bytes(s));
  });
}

std::int64_t attention_backward_workspace(CpuContext& context, const AttentionBackward& call) {
  return with_tiles(call.q.dtype, [&](const auto& engine) {
    using Tiles = std::decay_t<decltype(engine)>;
    return delta_bytes(call.shape) +
           BackwardPlan<Tiles>(engine, call.shape, context.threads(), nullptr).bytes();
  });
}

void attention_backward_sinks(CpuContext& context, const AttentionBackwardSinks& call) {
  with_float_type(call.out.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t tokens = call.out.rows(), dim = call.value_dim, width = call.heads * dim;
    const T* sinks = context.data<const T>(call.sinks);
    float* d_sinks = context.data<float>(call.d_sinks);
    parallel_ranges(
        context, call.heads, 2 * tokens * dim * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t head = begin; head < end; ++head) {
            const T* out = context.data<const T>(call.out) + head * dim;
            const T* d_out = context.data<const T>(call.d_out) + head * dim;
            const float* lse = context.data<const float>(call.lse) + head * tokens;
            const float sink = to_float(sinks[head]);
            double sum = 0;
            for (std::int64_t row = 0; row < tokens; ++row) {
              const T *o = out + row * width, *d_o = d_out + row * width;
              const float delta =
                  sum_terms(dim, [=](std::int64_t c) { return to_float(o[c]) * to_float(d_o[c]); });
              sum -= static_cast<double>(exp2_flushed((sink - lse[row]) * kLog2E) * delta);
            }
            d_sinks[head] =
                static_cast<float>(call.accumulate ? static_cast<double>(d_sinks[head]) + sum : sum);
          }
        });
  });
}

void attention_merge(CpuContext& context, const AttentionMerge& call) {
  const std::int64_t tokens = call.out.rows(), heads = call.heads, dim = call.value_dim;
  const auto* part_lse = context.data<const float>(call.part_lse);
  auto* all_lse = context.data<float>(call.lse);
  with_float_type(call.out.dtype, [&](auto out_type) {
    with_float_type(call.part.dtype, [&](auto part_type) {
      auto* out = context.data<decltype(out_type)>(call.out);
      const auto* part = context.data<const decltype(part_type)>(call.part);
      parallel_ranges(context, tokens * heads, 12 * dim, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          const std::int64_t statistic = row % heads * tokens + row / heads;
          const float other = part_lse[statistic];
          float& lse = all_lse[statistic];
          const auto* from = part + row * dim;
          auto* to = out + row * dim;
          using Out = std::decay_t<decltype(*to)>;
          if (!call.accumulate) {
            lse = other;
            for (std::int64_t c = 0; c < dim; ++c) to[c] = from_float<Out>(to_float(from[c]));
            continue;
          }
          const MergedSums merged(lse, other);
          lse = merged.lse;
          PRIMUS_SIMD()
          for (std::int64_t c = 0; c < dim; ++c)
            to[c] = from_float<Out>(merged.a * to_float(to[c]) + merged.b * to_float(from[c]));
        }
      });
    });
  });
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
