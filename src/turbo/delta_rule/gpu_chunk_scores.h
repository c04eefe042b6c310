// Products of the queries and keys of a chunk with the keys of the chunk, on matrix units: the first part of
// DeltaPrepare (gpu_prepare.h).
//
// With gates per channel, the decay between tokens of two blocks is a product of two factors <= 1. The first
// factor is the decay from the earlier token to the start of the later token's block. The second factor is
// the decay from this start to the later token. Pairs of tokens of one block are summed one by one.
#pragma once

#include "turbo/delta_rule/gpu_chunks.h"

namespace primus::turbo::PRIMUS_GPU {

// The base class of DeltaPrepare: its items, its shared memory, and the products of queries and keys.
template <class T, int kKeys, bool kByChannel>
struct DeltaChunkScores : DeltaChunkKernel<T, kKeys, kByChannel> {
  using Base = DeltaChunkKernel<T, kKeys, kByChannel>;
  using Base::in, Base::to;
  static constexpr int kThreads = 256, kWarps = kThreads / kWarp;
  static_assert(kWarp != 32 || kWarps == 2 * kBlocks);
  static constexpr int kWide = kKeys > kPart ? kKeys : kPart;
  struct Memory {
    T k[kRows][kKeys + kPad];
    T wide[kRows][kWide + kPad];  // holds the queries, later values
    float l[kRows][kRows + 4];
    T p[kRows][kRows + kPad];
    float q_factor[kRows], k_factor[kRows], beta[kRows];
    float since[kRows];  // used with one gate per head: a key's decay times its normalisation factor
    int document[kRows];
    double sums[kRows];  // used with one gate per head: sums of gates
    struct Solution {
      T x[kRows][kRows + kPad];     // - T[i] L[i][j] in block (i, j), and T[i] beta in the diagonal blocks
      T keys[kRows][kTile + kPad];  // - T[i] times the factors of keys
    };
    union {
      float gates[kByChannel ? kRows : 1][kKeys + 4];  // used with gates per channel: sums of gates, in base
                                                       // 2
      Solution solution;
    };
  };

  // Computes the factors that normalise keys and queries. Two threads share a row.
  PRIMUS_DEVICE void find_factors(Memory& m) const {
    const int i = thread() / 2 % kRows;
    const bool key = thread() < kThreads / 2;
    float square = 0;
    for (int c = thread() % 2 * 8; c < kKeys; c += 16) {
      float x[8];
      load<8>(key ? &m.k[i][c] : &m.wide[i][c], x);
      PRIMUS_UNROLL
      for (int n = 0; n < 8; ++n) square = multiply_add(x[n], x[n], square);
    }
    square += from_lane_xor(square, 1);
    if (thread() % 2 == 0)
      (key ? m.k_factor : m.q_factor)[i] = in.normalise ? unit_factor(square, in.epsilon) : 1.0F;
  }

  // Stores the decayed product of a query (or a key) i with a key j in P (or in L).
  PRIMUS_DEVICE static void keep(Memory& m, bool of_query, int i, int j, float product) {
    const bool sees = j <= i && j >= m.document[i];
    const float value = sees ? product * m.k_factor[j] : 0.0F;
    if (of_query) {
      m.p[i][j] = from_float<T>(value * m.q_factor[i]);
    } else {
      m.l[i][j] = j < i ? value * m.k_factor[i] * m.beta[i] : 0.0F;
    }
  }
  // A warp multiplies its block of keys or of queries with the key block at the same position and all earlier
  // key blocks.
  PRIMUS_DEVICE void scores_by_head(Memory& m) const {
    const int own = warp() % kBlocks;
    const bool of_query = warp() >= kBlocks;
    const T* const left = of_query ? &m.wide[own * kTile][0] : &m.k[own * kTile][0];
    const int step = of_query ? kWide + kPad : kKeys + kPad;
    Accumulator sums[kBlocks];
    PRIMUS_UNROLL
    for (int j = 0; j < kBlocks; ++j) sums[j].clear();
    PRIMUS_UNROLL
    for (int c = 0; c < kKeys; c += kTile) {
      const auto x = load_left<false>(left + c, step);
      PRIMUS_UNROLL
      for (int j = 0; j < kBlocks; ++j) {
        if (j <= own) multiply(sums[j], x, load_right<false>(&m.k[j * kTile][c], kKeys + kPad));
      }
    }
    PRIMUS_UNROLL
    for (int j = 0; j < kBlocks; ++j) {
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; ++n) {
        const int row = own * kTile + Accumulator::row(n), other = j * kTile + Accumulator::col(n);
        const float decay = other <= row ? ::expf(static_cast<float>(m.sums[row] - m.sums[other])) : 0.0F;
        keep(m, of_query, row, other, sums[j].at[n] * decay);
      }
    }
  }
  PRIMUS_DEVICE void scores_by_channel(Memory& m) const {
    const int own = warp() % kBlocks;
    const bool of_query = warp() >= kBlocks;
    const T* const left = of_query ? &m.wide[own * kTile][0] : &m.k[own * kTile][0];
    const int step = of_query ? kWide + kPad : kKeys + kPad;
    Accumulator sums[kBlocks];
    PRIMUS_UNROLL
    for (int j = 0; j < kBlocks; ++j) sums[j].clear();
    if (own > 0) {
      using Part = Operand<T>;
      const float* const end = m.gates[own * kTile - 1];
      for (int c = 0; c < kKeys; c += kTile) {
        auto x = load_left<false>(left + c, step);
        PRIMUS_UNROLL
        for (int n = 0; n < kPerLane; ++n) {
          const int k = c + Part::left_k(n);
          const float decay = power_of_two(m.gates[own * kTile + Part::left_row(n)][k] - end[k]);
          x.at[n] = from_float<T>(to_float(x.at[n]) * decay);
        }
        PRIMUS_UNROLL
        for (int j = 0; j + 1 < kBlocks; ++j) {
          if (j >= own) continue;
          auto y = load_right<false>(&m.k[j * kTile][c], kKeys + kPad);
          PRIMUS_UNROLL
          for (int n = 0; n < kPerLane; ++n) {
            const int k = c + Part::right_k(n);
            const float decay = power_of_two(end[k] - m.gates[j * kTile + Part::right_row(n)][k]);
            y.at[n] = from_float<T>(to_float(y.at[n]) * decay);
          }
          multiply(sums[j], x, y);
        }
      }
    }
    PRIMUS_UNROLL
    for (int j = 0; j < kBlocks; ++j) {
      if (j == own) continue;
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; ++n)
        keep(m, of_query, own * kTile + Accumulator::row(n), j * kTile + Accumulator::col(n), sums[j].at[n]);
    }
    // Pairs within a block: rows r and kTile - 1 - r together have kTile + 1 pairs.
    constexpr int kPairs = kTile * (kTile + 1) / 2;
    for (int pair = lane() + warp() / kBlocks * kWarp; pair < kPairs; pair += 2 * kWarp) {
      const int fold = pair / (kTile + 1), at = pair % (kTile + 1);
      const int i = own * kTile + (at <= fold ? fold : kTile - 1 - fold);
      const int j = own * kTile + (at <= fold ? at : at - fold - 1);
      float read = 0, write = 0;
      for (int c = 0; c < kKeys; c += 4) {
        float query[4], key[4], other[4], sum[4], seen[4];
        load<4>(&m.wide[i][c], query);
        load<4>(&m.k[i][c], key);
        load<4>(&m.k[j][c], other);
        load<4>(&m.gates[i][c], sum);
        load<4>(&m.gates[j][c], seen);
        PRIMUS_UNROLL
        for (int n = 0; n < 4; ++n) {
          const float decayed = other[n] * power_of_two(sum[n] - seen[n]);
          read = multiply_add(query[n], decayed, read);
          write = multiply_add(key[n], decayed, write);
        }
      }
      keep(m, true, i, j, read);
      keep(m, false, i, j, write);
      if (j < i) {
        keep(m, true, j, i, 0);
        keep(m, false, j, i, 0);
      }
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
