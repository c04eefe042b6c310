// Decoding over cached latents (multi-head latent attention): heads share a row of keys whose first columns
// are also the values. A block processes one row of queries, one range of keys, and up to 16 of the heads
// that share keys. Each row of a matrix unit's tile is one head. Therefore a block reads each key once for
// all of its heads.
#pragma once

#include "turbo/attention/gpu_paged.h"
#include "turbo/attention/gpu_tiles.h"
#include "turbo/gpu/async_copy.h"
#include "turbo/gpu/mma.h"

namespace primus::turbo::PRIMUS_GPU {

struct DecodeLatents {
  using T = BFloat16;
  static constexpr int kThreads = 128, kWarps = kThreads / kWarp;
  static constexpr int kWidest = 576, kWidestValue = 512;  // max. number of columns of keys and of values
  static constexpr int kKeys = 64, kLength = 2 * kKeys;    // number of keys per step and per block
  // kPad: padding against bank conflicts; kLine: elements in 16 bytes.
  static constexpr int kPad = 8, kLine = 8;
  static constexpr int kColumns = kWidestValue / kTile / kWarps;  // number of tiles of value columns per warp
  using StartsEarly = void;
  Queries queries;
  const T *q, *k;
  float* parts;  // [rows, heads, runs, value_dim + 2], in the layout of DecodeRun
  std::int64_t q_stride, k_stride;
  int heads, kv_heads, group, head_tiles, runs, head_dim, value_dim;
  float scale;  // factor of scores, including the conversion to base 2

  struct Memory {
    T q[kTile][kWidest + kPad];
    T k[kKeys][kWidest + kPad];
    T weights[kTile][kKeys + kPad];
    float scores[kTile][kKeys + 4];
    float shrink[kTile], maximum[kTile], total[kTile];
  };

  PRIMUS_DEVICE void operator()() const {
    Memory& m = *reinterpret_cast<Memory*>(dynamic_shared());
    let_next_begin();
    const int item = static_cast<int>(block());
    const int run = item % runs, tile = item / runs % head_tiles;
    const int kv_head = item / runs / head_tiles % kv_heads, row = item / runs / head_tiles / kv_heads;
    const bool has_row = queries.has(row);
    const Query query = has_row ? queries.at(row) : Query{};
    const int first = (query.begin / kLength + run) * kLength;
    wait_for_previous();
    if (!has_row || first >= query.end) return;

    const int first_head = kv_head * group + tile * kTile;
    const int there = group - tile * kTile < kTile ? group - tile * kTile : kTile;
    const int lines = head_dim / kLine;
    const T* const asked = q + row * q_stride + first_head * head_dim;
    for (int at = thread(); at < kTile * lines; at += kThreads) {
      const int h = at / lines, c = at % lines * kLine;
      copy_async(&m.q[h][c], h < there ? asked + h * head_dim + c : asked, h < there);
    }
    if (thread() < kTile) m.maximum[thread()] = -infinity(), m.total[thread()] = 0;
    const std::int32_t* const table = queries.pages.table + query.sequence * queries.pages.blocks;
    const int bits = queries.pages.page_bits;
    Accumulator sums[kColumns];
    PRIMUS_UNROLL
    for (int n = 0; n < kColumns; ++n) sums[n].clear();

    for (int begin = first; begin < first + kLength && begin < query.end; begin += kKeys) {
      for (int at = thread(); at < kKeys * lines; at += kThreads) {
        const int key = begin + at / lines, c = at % lines * kLine;
        const bool seen = key >= query.begin && key < query.end;
        const int safe = seen ? key : query.end - 1;
        const std::int64_t place =
            (static_cast<std::int64_t>(table[safe >> bits]) << bits) + (safe & ((1 << bits) - 1));
        copy_async(&m.k[at / lines][c], k + place * k_stride + kv_head * head_dim + c, seen);
      }
      end_group_of_copies();
      wait_for_copies<0>();
      barrier();
      score(m, query, begin);
      barrier();
      weigh(m);
      barrier();
      PRIMUS_UNROLL
      for (int n = 0; n < kColumns; ++n) {
        const int column = (n * kWarps + warp()) * kTile;
        if (column >= value_dim) continue;
        PRIMUS_UNROLL
        for (int i = 0; i < kPerLane; ++i) sums[n].at[i] *= m.shrink[Accumulator::row(i)];
        PRIMUS_UNROLL
        for (int c = 0; c < kKeys; c += kTile)
          multiply(sums[n], load_left<false>(&m.weights[0][c], kKeys + kPad),
                   load_right<true>(&m.k[c][column], kWidest + kPad));
      }
      barrier();
    }

    const int size = value_dim + 2;
    float* const to = parts + ((static_cast<std::int64_t>(row) * heads + first_head) * runs + run) * size;
    const std::int64_t of_head = static_cast<std::int64_t>(runs) * size;
    if (thread() < there) {
      to[thread() * of_head] = m.maximum[thread()];
      to[thread() * of_head + 1] = m.total[thread()];
    }
    PRIMUS_UNROLL
    for (int n = 0; n < kColumns; ++n) {
      const int column = (n * kWarps + warp()) * kTile;
      if (column >= value_dim) continue;
      PRIMUS_UNROLL
      for (int i = 0; i < kPerLane; ++i) {
        const int h = Accumulator::row(i);
        if (h < there) to[h * of_head + 2 + column + Accumulator::col(i)] = sums[n].at[i];
      }
    }
  }

 private:
  // Computes the scores of all heads for the keys of a step; a warp processes 16 keys at a time.
  PRIMUS_DEVICE void score(Memory& m, const Query& query, int begin) const {
    for (int t = warp() * kTile; t < kKeys; t += kWarps * kTile) {
      Accumulator sum;
      sum.clear();
      PRIMUS_UNROLL_BY(4)
      for (int c = 0; c < head_dim; c += kTile)
        multiply(sum, load_left<false>(&m.q[0][c], kWidest + kPad),
                 load_right<false>(&m.k[t][c], kWidest + kPad));
      PRIMUS_UNROLL
      for (int i = 0; i < kPerLane; ++i) {
        const int key = begin + t + Accumulator::col(i);
        const bool seen = key >= query.begin && key < query.end;
        m.scores[Accumulator::row(i)][t + Accumulator::col(i)] = seen ? sum.at[i] * scale : -infinity();
      }
    }
  }
  // Computes exponentials relative to the largest score so far; a warp processes one head at a time.
  PRIMUS_DEVICE void weigh(Memory& m) const {
    for (int h = warp(); h < kTile; h += kWarps) {
      const float before = m.maximum[h];
      float maximum = before;
      for (int i = lane(); i < kKeys; i += kWarp) maximum = ::fmaxf(maximum, m.scores[h][i]);
      maximum = warp_reduce(maximum, Maximum{});
      const float base = maximum == -infinity() ? 0.0F : maximum;
      float total = 0;
      for (int i = lane(); i < kKeys; i += kWarp) {
        const float weight = exp2_flushed(m.scores[h][i] - base);
        total += weight;
        m.weights[h][i] = from_float<T>(weight);
      }
      total = warp_reduce(total);
      if (lane() != 0) continue;
      const float shrink = exp2_flushed(before - base);
      m.shrink[h] = shrink;
      m.maximum[h] = maximum;
      m.total[h] = m.total[h] * shrink + total;
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
