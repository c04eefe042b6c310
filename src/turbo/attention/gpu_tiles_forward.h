// The forward pass of attention on tiles, on any GPU (gpu_tiles.h): for AttentionForward and for
// PagedAttention.
#pragma once

#include "turbo/attention/gpu_tiles.h"

namespace primus::turbo::PRIMUS_GPU {

// A block computes a column panel of the results of one tile of queries.
template <class T>
struct ForwardTiles {
  using Tiles = AttentionTiles<T>;
  static constexpr int kThreads = Tiles::kThreads, kSlots = Accumulator::kRows;
  Visibility visibility;
  const T *q, *k, *v, *sinks;  // `sinks` may be null
  T* out;
  float* lse;  // may be null
  std::int64_t q_stride, k_stride, v_stride;
  std::int64_t batch, capacity_k, heads, group, head_dim, value_dim, tiles, panels;
  ScoreScale scale;
  const std::int32_t* unless_zero;  // if not null and the value is 0, the kernel does nothing

  PRIMUS_DEVICE void operator()() const {
    if (unless_zero && *unless_zero == 0) return;
    auto& m = *reinterpret_cast<typename Tiles::Memory*>(dynamic_shared());
    // The blocks of the last queries of a sequence start first, because these queries see the most keys.
    const std::int64_t panel = block() % panels, head = block() / panels % heads;
    const std::int64_t sequence = block() / panels / heads % batch;
    const std::int64_t row = (tiles - 1 - block() / panels / heads / batch) * Tiles::kRows;
    const std::int64_t seq_q = visibility.seq_q, seq_k = visibility.seq_k;
    run(m, visibility, {q + sequence * seq_q * q_stride + head * head_dim, q_stride, seq_q, head_dim},
        HeadRows<T>{k + sequence * capacity_k * k_stride + head / group * head_dim, k_stride, seq_k,
                    head_dim},
        HeadRows<T>{v + sequence * capacity_k * v_stride + head / group * value_dim, v_stride, seq_k,
                    value_dim},
        sequence, head, row, panel, out + sequence * seq_q * heads * value_dim,
        lse ? lse + (head * batch + sequence) * seq_q : nullptr);
  }

  // Computes one tile of queries of one sequence. `of`: which keys the queries see. `to` and `log_sums` (may
  // be null) point to the results of the sequence's first query.
  template <class Keys>
  PRIMUS_DEVICE void run(typename Tiles::Memory& m, const Visibility& of, const HeadRows<T>& queries,
                         const Keys& keys, const Keys& values, std::int64_t sequence, std::int64_t head,
                         std::int64_t row, std::int64_t panel, T* to, float* log_sums) const {
    const std::int64_t seq_q = of.seq_q;
    KeyRange seen[kSlots];
    float maximum[kSlots], total[kSlots];
    PRIMUS_UNROLL
    for (int s = 0; s < kSlots; ++s) {
      const std::int64_t i = row + warp() * kTile + Accumulator::row_of_slot(s);
      seen[s] = i < seq_q ? of.keys(sequence, i) : KeyRange{0, 0};
      maximum[s] = -infinity();
      total[s] = 0;
    }
    typename Tiles::Sums sums;
    Tiles::clear(sums);
    const std::int64_t end = of.keys(sequence, smaller(row + Tiles::kRows, seq_q) - 1).end;
    bool loaded = false;
    for (std::int64_t col = of.keys(sequence, row).begin / Tiles::kCols * Tiles::kCols; col < end;
         col += Tiles::kCols) {
      typename Tiles::Scores scores;
      Tiles::multiply_rows(m, scores, 0, queries, row, keys, col, loaded,
                           [&] { Tiles::fetch(m.wide, values, col, panel * Tiles::kWide); });
      scale.apply_cap(scores);
      softmax(scale.factor() * kLog2E, scores, seen, col, maximum, total, sums);
      Tiles::add_weighted(m, sums, scores, panel * Tiles::kWide, value_dim);
    }
    finish(seq_q, head, row, panel, maximum, total, sums, to, log_sums);
  }

  // Masks and scales the scores, updates the running maximum, and turns scores into weights of the values.
  PRIMUS_DEVICE static void softmax(float factor, typename Tiles::Scores& scores,
                                    const KeyRange (&seen)[kSlots], std::int64_t col,
                                    float (&maximum)[kSlots], float (&total)[kSlots],
                                    typename Tiles::Sums& sums) {
    // Positions relative to the tile, in 32 bits. In most tiles every query sees every key.
    int begin[kSlots], end[kSlots];
    bool whole = true;
    float tile_max[kSlots], tile_total[kSlots], shrink[kSlots];
    PRIMUS_UNROLL
    for (int s = 0; s < kSlots; ++s) {
      begin[s] = static_cast<int>(larger(seen[s].begin - col, 0));
      end[s] = static_cast<int>(smaller(seen[s].end - col, Tiles::kCols));
      whole = whole && begin[s] == 0 && end[s] == Tiles::kCols;
      tile_max[s] = -infinity(), tile_total[s] = 0;
    }
    if (!whole) {
      PRIMUS_UNROLL
      for (int j = 0; j < Tiles::kCols / kTile; ++j) {
        PRIMUS_UNROLL
        for (int i = 0; i < kPerLane; ++i) {
          const int s = Accumulator::slot(i), c = j * kTile + Accumulator::col(i);
          if (c < begin[s] || c >= end[s]) scores[j].at[i] = -infinity();
        }
      }
    }
    PRIMUS_UNROLL
    for (int j = 0; j < Tiles::kCols / kTile; ++j) {
      PRIMUS_UNROLL
      for (int i = 0; i < kPerLane; ++i) {
        const int s = Accumulator::slot(i);
        tile_max[s] = ::fmaxf(tile_max[s], scores[j].at[i]);
      }
    }
    PRIMUS_UNROLL
    for (int s = 0; s < kSlots; ++s) {
      const float next = ::fmaxf(maximum[s], reduce_row(tile_max[s], Maximum{}) * factor);
      // If no key is visible yet, all exponentials are zero, and any finite base works.
      const float base = next == -infinity() ? 0.0F : next;
      shrink[s] = exp2_flushed(maximum[s] - base);
      maximum[s] = next;
      tile_max[s] = base;
    }
    PRIMUS_UNROLL
    for (int j = 0; j < Tiles::kCols / kTile; ++j) {
      PRIMUS_UNROLL
      for (int i = 0; i < kPerLane; ++i) {
        const int s = Accumulator::slot(i);
        scores[j].at[i] = exp2_flushed(multiply_add(scores[j].at[i], factor, -tile_max[s]));
        tile_total[s] += scores[j].at[i];
      }
    }
    PRIMUS_UNROLL
    for (int s = 0; s < kSlots; ++s) total[s] = total[s] * shrink[s] + reduce_row(tile_total[s], Plus{});
    PRIMUS_UNROLL
    for (int j = 0; j < Tiles::kWide / kTile; ++j) {
      PRIMUS_UNROLL
      for (int i = 0; i < kPerLane; ++i) sums[j].at[i] *= shrink[Accumulator::slot(i)];
    }
  }

  // Returns the log-sum-exp of a row including its sink (-infinity: no sink). Sets `factor` to the factor of
  // the row's sums: 0 if the row sees no key.
  PRIMUS_DEVICE static float end_softmax(float maximum, float total, float sink, float& factor) {
    const float final_max = ::fmaxf(maximum, sink);
    const bool nothing = final_max == -infinity();
    const float shrink = nothing ? 0.0F : ::exp2f(maximum - final_max);
    const float sum = total * shrink + (sink == -infinity() ? 0.0F : ::exp2f(sink - final_max));
    factor = nothing ? 0.0F : shrink / sum;
    return nothing ? -infinity() : (final_max + ::log2f(sum)) * kLn2;
  }

  PRIMUS_DEVICE void finish(std::int64_t seq_q, std::int64_t head, std::int64_t row, std::int64_t panel,
                            float (&maximum)[kSlots], float (&total)[kSlots],
                            const typename Tiles::Sums& sums, T* to, float* log_sums) const {
    float factor[kSlots];
    PRIMUS_UNROLL
    for (int s = 0; s < kSlots; ++s) {
      const float log_sum =
          end_softmax(maximum[s], total[s], sinks ? to_float(sinks[head]) * kLog2E : -infinity(), factor[s]);
      const std::int64_t i = row + warp() * kTile + Accumulator::row_of_slot(s);
      if (log_sums && panel == 0 && i < seq_q && Accumulator::col(0) == 0) log_sums[i] = log_sum;
    }
    Tiles::store(sums, to + head * value_dim, heads * value_dim, row, panel * Tiles::kWide, seq_q, value_dim,
                 factor);
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
