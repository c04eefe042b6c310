// The backward pass of attention on tiles, on any GPU (gpu_tiles.h). There are two kernels: one for d_k and
// d_v, and one for d_q. Each kernel sums in a fixed order without atomics: results are deterministic. Both
// kernels compute the scores.
#pragma once

#include "turbo/attention/gpu_tiles.h"

namespace primus::turbo::PRIMUS_GPU {

// Computes delta[head, token] = out · d_out, with one warp per element.
template <class T>
struct Deltas {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / kWarp;
  const T *out, *d_out;
  float* delta;
  std::int64_t tokens, heads, value_dim;
  const std::int32_t* unless_zero;

  PRIMUS_DEVICE void operator()() const {
    if (unless_zero && *unless_zero == 0) return;
    const std::int64_t item = block() * kWarps + warp();
    if (item >= tokens * heads) return;
    const std::int64_t at = item * value_dim;
    float sum = 0;
    for (std::int64_t i = lane(); i < value_dim; i += kWarp) {
      sum = multiply_add(to_float(out[at + i]), to_float(d_out[at + i]), sum);
    }
    sum = warp_reduce(sum);
    if (lane() == 0) delta[item % heads * tokens + item / heads] = sum;
  }
};

// Members and functions that the two kernels share.
template <class T>
struct BackwardTiles {
  using Tiles = AttentionTiles<T>;
  static constexpr int kThreads = Tiles::kThreads, kSlots = Accumulator::kRows;
  Visibility visibility;
  const T *q, *k, *v, *d_out;
  const float *lse, *delta;
  std::int64_t q_stride, k_stride, v_stride;
  std::int64_t batch, capacity_k, heads, group, head_dim, value_dim;
  ScoreScale scale;
  const std::int32_t* unless_zero;

  PRIMUS_DEVICE bool nothing_to_do() const { return unless_zero && *unless_zero == 0; }
  PRIMUS_DEVICE HeadRows<T> queries(std::int64_t sequence, std::int64_t head) const {
    return {q + sequence * visibility.seq_q * q_stride + head * head_dim, q_stride, visibility.seq_q,
            head_dim};
  }
  PRIMUS_DEVICE HeadRows<T> keys(std::int64_t sequence, std::int64_t kv_head) const {
    return {k + sequence * capacity_k * k_stride + kv_head * head_dim, k_stride, visibility.seq_k, head_dim};
  }
  PRIMUS_DEVICE HeadRows<T> values(std::int64_t sequence, std::int64_t kv_head) const {
    return {v + sequence * capacity_k * v_stride + kv_head * value_dim, v_stride, visibility.seq_k,
            value_dim};
  }
  PRIMUS_DEVICE HeadRows<T> d_outs(std::int64_t sequence, std::int64_t head) const {
    const std::int64_t stride = heads * value_dim;
    return {d_out + sequence * visibility.seq_q * stride + head * value_dim, stride, visibility.seq_q,
            value_dim};
  }
  // Returns the index of a query in lse and delta.
  PRIMUS_DEVICE std::int64_t place(std::int64_t sequence, std::int64_t head, std::int64_t i) const {
    return (head * batch + sequence) * visibility.seq_q + i;
  }
  // Returns the query's log-sum-exp. For a query without visible keys, the log-sum-exp is -infinity. Any
  // finite number may replace this value, because all weights of the query are zero.
  PRIMUS_DEVICE float log_sum(std::int64_t place) const {
    return lse[place] == -infinity() ? 0.0F : lse[place];
  }
  PRIMUS_DEVICE float weight(float score, float log_sum) const {
    return exp2_flushed(multiply_add(score, scale.factor() * kLog2E, -log_sum * kLog2E));
  }
};

// The rows of a block are keys. A block computes a column panel of d_v or d_k for these keys, and sums over
// all queries that see these keys.
template <class T, class Gradient>
struct BackwardKeys : BackwardTiles<T> {
  using Base = BackwardTiles<T>;
  using Base::batch, Base::capacity_k, Base::group, Base::kSlots, Base::scale, Base::visibility;
  using typename Base::Tiles;
  Gradient *d_k, *d_v;
  std::int64_t d_k_stride, d_v_stride, kv_heads, value_panels, panels;
  bool accumulate;

  struct Memory {
    typename Tiles::Memory tiles;
    float lse[Tiles::kCols], delta[Tiles::kCols];
    std::int32_t begin[Tiles::kCols], end[Tiles::kCols];
  };

  PRIMUS_DEVICE void operator()() const {
    if (this->nothing_to_do()) return;
    Memory& m = *reinterpret_cast<Memory*>(dynamic_shared());
    const std::int64_t panel = block() % panels, kv_head = block() / panels % kv_heads;
    const std::int64_t sequence = block() / panels / kv_heads % batch;
    const std::int64_t row = block() / panels / kv_heads / batch * Tiles::kRows;
    const bool for_values = panel < value_panels;
    const std::int64_t column = (for_values ? panel : panel - value_panels) * Tiles::kWide;
    const auto keys = this->keys(sequence, kv_head), values = this->values(sequence, kv_head);
    const std::int64_t last = smaller(row + Tiles::kRows, visibility.seq_k) - 1;
    const std::int64_t first_query = visibility.first_to_end_behind(sequence, row);
    const std::int64_t end_query = visibility.first_to_begin_behind(sequence, last);
    bool keys_loaded = false, values_loaded = false;
    typename Tiles::Sums sums;
    Tiles::clear(sums);
    for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const auto queries = this->queries(sequence, head), d_outs = this->d_outs(sequence, head);
      for (std::int64_t col = first_query / Tiles::kCols * Tiles::kCols; col < end_query;
           col += Tiles::kCols) {
        typename Tiles::Scores scores;
        Tiles::multiply_rows(m.tiles, scores, 0, keys, row, queries, col, keys_loaded, [&] {
          fetch_queries(m, sequence, head, col);
          Tiles::fetch(m.tiles.wide, for_values ? d_outs : queries, col, column);
        });
        scale.apply_cap(scores);
        if (for_values) {
          each_weight(m, scores, row, [](float weight, float, int, int) { return weight; });
        } else {
          typename Tiles::Scores d_weights;
          Tiles::multiply_rows(m.tiles, d_weights, 1, values, row, d_outs, col, values_loaded, [] {});
          if (Tiles::kLefts == 1) keys_loaded = false;  // keys and values share one buffer
          each_weight(m, scores, row, [&](float weight, float score, int j, int i) {
            return weight *
                   ((d_weights[j].at[i] - m.delta[j * kTile + Accumulator::col(i)]) * scale.slope(score));
          });
        }
        Tiles::add_weighted(m.tiles, sums, scores, column, for_values ? this->value_dim : this->head_dim);
      }
    }
    float factor[kSlots];
    PRIMUS_UNROLL
    for (float& f : factor) f = 1;
    if (for_values) {
      Tiles::store(sums, d_v + sequence * capacity_k * d_v_stride + kv_head * this->value_dim, d_v_stride,
                   row, column, visibility.seq_k, this->value_dim, factor, accumulate);
    } else {
      Tiles::store(sums, d_k + sequence * capacity_k * d_k_stride + kv_head * this->head_dim, d_k_stride, row,
                   column, visibility.seq_k, this->head_dim, factor, accumulate);
    }
  }

  // Fetches the ranges of visible keys and the sums for the queries of a step. Queries after the last query
  // of the sequence see no keys.
  PRIMUS_DEVICE void fetch_queries(Memory& m, std::int64_t sequence, std::int64_t head,
                                   std::int64_t col) const {
    for (int c = thread(); c < Tiles::kCols; c += Base::kThreads) {
      const std::int64_t i = col + c;
      const bool there = i < visibility.seq_q;
      const KeyRange seen = there ? visibility.keys(sequence, i) : KeyRange{0, 0};
      m.begin[c] = static_cast<std::int32_t>(seen.begin);
      m.end[c] = static_cast<std::int32_t>(seen.end);
      m.lse[c] = there ? this->log_sum(this->place(sequence, head, i)) : 0.0F;
      m.delta[c] = there ? this->delta[this->place(sequence, head, i)] : 0.0F;
    }
  }

  // Replaces each score by of(weight, score, j, i). `weight` is the attention weight of the forward pass: 0
  // if the query does not see the key.
  template <class Of>
  PRIMUS_DEVICE void each_weight(const Memory& m, typename Tiles::Scores& scores, std::int64_t row,
                                 Of of) const {
    PRIMUS_UNROLL
    for (int j = 0; j < Tiles::kCols / kTile; ++j) {
      PRIMUS_UNROLL
      for (int i = 0; i < kPerLane; ++i) {
        const int key = static_cast<int>(row) + warp() * kTile + Accumulator::row(i);
        const int c = j * kTile + Accumulator::col(i);
        float& score = scores[j].at[i];
        score = of(key >= m.begin[c] && key < m.end[c] ? this->weight(score, m.lse[c]) : 0.0F, score, j, i);
      }
    }
  }
};

// The rows of a block are queries. A block computes a column panel of d_q for these queries.
template <class T, class Gradient>
struct BackwardQueries : BackwardTiles<T> {
  using Base = BackwardTiles<T>;
  using Base::batch, Base::group, Base::heads, Base::kSlots, Base::scale, Base::visibility;
  using typename Base::Tiles;
  Gradient* d_q;
  std::int64_t d_q_stride, tiles, panels;
  bool accumulate;

  PRIMUS_DEVICE void operator()() const {
    if (this->nothing_to_do()) return;
    auto& m = *reinterpret_cast<typename Tiles::Memory*>(dynamic_shared());
    const std::int64_t panel = block() % panels, head = block() / panels % heads;
    const std::int64_t sequence = block() / panels / heads % batch;
    const std::int64_t row = (tiles - 1 - block() / panels / heads / batch) * Tiles::kRows;
    const auto queries = this->queries(sequence, head), d_outs = this->d_outs(sequence, head);
    const auto keys = this->keys(sequence, head / group), values = this->values(sequence, head / group);
    int begin[kSlots], end[kSlots];
    float log_sums[kSlots], deltas[kSlots];
    PRIMUS_UNROLL
    for (int s = 0; s < kSlots; ++s) {
      const std::int64_t i = row + warp() * kTile + Accumulator::row_of_slot(s);
      const bool there = i < visibility.seq_q;
      const KeyRange seen = there ? visibility.keys(sequence, i) : KeyRange{0, 0};
      begin[s] = static_cast<int>(seen.begin);
      end[s] = static_cast<int>(seen.end);
      log_sums[s] = there ? this->log_sum(this->place(sequence, head, i)) : 0.0F;
      deltas[s] = there ? this->delta[this->place(sequence, head, i)] : 0.0F;
    }
    bool queries_loaded = false, d_outs_loaded = false;
    typename Tiles::Sums sums;
    Tiles::clear(sums);
    const std::int64_t end_key =
        visibility.keys(sequence, smaller(row + Tiles::kRows, visibility.seq_q) - 1).end;
    for (std::int64_t col = visibility.keys(sequence, row).begin / Tiles::kCols * Tiles::kCols; col < end_key;
         col += Tiles::kCols) {
      typename Tiles::Scores scores, d_weights;
      Tiles::multiply_rows(m, scores, 0, queries, row, keys, col, queries_loaded,
                           [&] { Tiles::fetch(m.wide, keys, col, panel * Tiles::kWide); });
      Tiles::multiply_rows(m, d_weights, 1, d_outs, row, values, col, d_outs_loaded, [] {});
      if (Tiles::kLefts == 1) queries_loaded = false;  // queries and d_out share one buffer
      scale.apply_cap(scores);
      PRIMUS_UNROLL
      for (int j = 0; j < Tiles::kCols / kTile; ++j) {
        PRIMUS_UNROLL
        for (int i = 0; i < kPerLane; ++i) {
          const int s = Accumulator::slot(i);
          const int key = static_cast<int>(col) + j * kTile + Accumulator::col(i);
          const bool visible = key >= begin[s] && key < end[s];
          const float p = visible ? this->weight(scores[j].at[i], log_sums[s]) : 0.0F;
          scores[j].at[i] = p * (d_weights[j].at[i] - deltas[s]) * scale.slope(scores[j].at[i]);
        }
      }
      Tiles::add_weighted(m, sums, scores, panel * Tiles::kWide, this->head_dim);
    }

    float factor[kSlots];
    PRIMUS_UNROLL
    for (float& f : factor) f = 1;
    Tiles::store(sums, d_q + sequence * visibility.seq_q * d_q_stride + head * this->head_dim, d_q_stride,
                 row, panel * Tiles::kWide, visibility.seq_q, this->head_dim, factor, accumulate);
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
