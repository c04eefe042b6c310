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
  static constexpr int kThreads = 256, kWarps = kThreads / kWarp;
  static constexpr int kWidest = 576, kWidestValue = 512;  // max. number of columns of keys and of values
  static constexpr int kLength = 64;                       // number of keys per block
  static constexpr int kHalves = 2;  // two warps share the scores of 16 keys: each adds half of the columns
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
    T k[kLength][kWidest + kPad];
    T weights[kTile][kLength + kPad];
    float scores[kHalves][kTile][kLength + 4];
    float maximum[kTile], total[kTile];
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
    const bool has_keys = has_row && first < query.end;
    const std::int32_t* const table = queries.pages.table + query.sequence * queries.pages.blocks;
    const int bits = queries.pages.page_bits;
    const auto row_of = [&](int key) {
      const std::int64_t place =
          (static_cast<std::int64_t>(table[key >> bits]) << bits) + (key & ((1 << bits) - 1));
      return k + place * k_stride + kv_head * head_dim;
    };
    // Fetches the keys into L2 while the previous kernel still computes the queries and the last key.
    constexpr int kCacheLine = 64;
    const int lines_of_cache = (head_dim + kCacheLine - 1) / kCacheLine;
    for (int at = thread(); has_keys && at < kLength * lines_of_cache; at += kThreads) {
      const int key = first + at / lines_of_cache;
      if (key < query.end) prefetch(row_of(key) + at % lines_of_cache * kCacheLine);
    }
    wait_for_previous();
    if (!has_keys) return;

    const int first_head = kv_head * group + tile * kTile;
    const int there = group - tile * kTile < kTile ? group - tile * kTile : kTile;
    const int lines = head_dim / kLine;
    const T* const asked = q + row * q_stride + first_head * head_dim;
    for (int at = thread(); at < kTile * lines; at += kThreads) {
      const int h = at / lines, c = at % lines * kLine;
      copy_async(&m.q[h][c], h < there ? asked + h * head_dim + c : asked, h < there);
    }
    for (int at = thread(); at < kLength * lines; at += kThreads) {
      const int key = first + at / lines, c = at % lines * kLine;
      const bool seen = key >= query.begin && key < query.end;
      copy_async(&m.k[at / lines][c], row_of(seen ? key : query.end - 1) + c, seen);
    }
    end_group_of_copies();
    wait_for_copies<0>();
    barrier();
    score(m);
    barrier();
    weigh(m, query, first);
    barrier();
    Operand<T> weights[kLength / kTile];
    PRIMUS_UNROLL
    for (int t = 0; t < kLength / kTile; ++t)
      weights[t] = load_left<false>(&m.weights[0][t * kTile], kLength + kPad);
    Accumulator sums[kColumns];
    PRIMUS_UNROLL
    for (int n = 0; n < kColumns; ++n) {
      sums[n].clear();
      const int column = (n * kWarps + warp()) * kTile;
      if (column >= value_dim) continue;
      PRIMUS_UNROLL
      for (int t = 0; t < kLength / kTile; ++t)
        multiply(sums[n], weights[t], load_right<true>(&m.k[t * kTile][column], kWidest + kPad));
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
  // Computes the scores of all heads and keys, in two parts. A warp processes 16 keys and half of the
  // columns.
  PRIMUS_DEVICE void score(Memory& m) const {
    constexpr int kTiles = kLength / kTile;
    const int half_columns = (head_dim / kTile + kHalves - 1) / kHalves * kTile;
    for (int item = warp(); item < kHalves * kTiles; item += kWarps) {
      const int key = item % kTiles * kTile, half = item / kTiles, begin = half * half_columns;
      const int end = begin + half_columns < head_dim ? begin + half_columns : head_dim;
      Accumulator sum;
      sum.clear();
      PRIMUS_UNROLL_BY(6)
      for (int c = begin; c < end; c += kTile)
        multiply(sum, load_left<false>(&m.q[0][c], kWidest + kPad),
                 load_right<false>(&m.k[key][c], kWidest + kPad));
      PRIMUS_UNROLL
      for (int i = 0; i < kPerLane; ++i)
        m.scores[half][Accumulator::row(i)][key + Accumulator::col(i)] = sum.at[i];
    }
  }
  // Computes exponentials relative to the largest score; a warp processes one head at a time.
  PRIMUS_DEVICE void weigh(Memory& m, const Query& query, int first) const {
    constexpr int kOwn = kLength / kWarp;  // keys of a lane
    for (int h = warp(); h < kTile; h += kWarps) {
      float scores[kOwn], maximum = -infinity(), total = 0;
      PRIMUS_UNROLL
      for (int j = 0; j < kOwn; ++j) {
        const int i = lane() + j * kWarp, key = first + i;
        const bool seen = key >= query.begin && key < query.end;
        scores[j] = seen ? (m.scores[0][h][i] + m.scores[1][h][i]) * scale : -infinity();
        maximum = ::fmaxf(maximum, scores[j]);
      }
      maximum = warp_reduce(maximum, Maximum{});
      const float base = maximum == -infinity() ? 0.0F : maximum;
      PRIMUS_UNROLL
      for (int j = 0; j < kOwn; ++j) {
        const float weight = exp2_flushed(scores[j] - base);
        total += weight;
        m.weights[h][lane() + j * kWarp] = from_float<T>(weight);
      }
      total = warp_reduce(total);
      if (lane() == 0) m.maximum[h] = maximum, m.total[h] = total;
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
