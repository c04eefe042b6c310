// Gradients of one chunk of the delta rule with a gate per key channel (gpu_finish.h).
//
// The decay between tokens of two blocks is a product of two factors <= 1, as in the forward pass
// (gpu_chunks.h). Therefore the gradients between blocks are products on matrix units. Within a block, a
// thread sums the pairs of tokens of one channel.
#pragma once

#include "turbo/delta_rule/gpu_finish.h"

namespace primus::turbo::PRIMUS_GPU {

template <class T, int kKeys>
struct DeltaFinishChannels : DeltaFinish<T, kKeys, true> {
  using Base = DeltaFinish<T, kKeys, true>;
  using Base::in, Base::to, Base::d;
  using Base::kThreads, Base::kKeyTiles;
  using Sums = typename Base::Sums;

  static constexpr int kTogether =
      kThreads / kKeys;  // number of token blocks whose pairs are summed at a time
  static_assert(kBlocks % kTogether == 0);
  struct Diagonal {
    float q[kTogether * kTile][kKeys + 4], looking[kTogether * kTile][kKeys + 4],
        seen[kTogether * kTile][kKeys + 4];
  };
  struct Memory {
    typename Base::Common common;
    float gates[kRows][kKeys + 4];  // sums of gates in base 2; overwritten by their gradients at the end
    float of_last[kKeys];  // contributions of states and keys to the gradient of the sum of a chunk's gates
    union {
      typename Base::Part part;
      struct {
        typename Base::Pairs pairs;
        Diagonal diagonal;
      };
    };
  };

  PRIMUS_DEVICE void operator()() const {
    Memory& m = *reinterpret_cast<Memory*>(dynamic_shared());
    const std::int64_t item = block();
    Base::begin(m.common, item, [&] { sum_gates_of_channels(in, item, in.tokens(item), m.gates); });
    Sums sums;
    Base::multiply_values(m.common, m.part, item, sums);
    Base::store_pairs(m.common, m.pairs, sums, [](int, int) { return 1.0F; });
    if (Base::has_channels()) decay_states(m, item, sums);
    barrier();
    if (Base::has_channels()) multiply_pairs(m, sums);
    PRIMUS_UNROLL
    for (int first = 0; first < kBlocks; first += kTogether) {
      if (first > 0) barrier();
      sum_within(m, first + thread() / kKeys, thread() % kKeys);
      barrier();
      if (Base::has_channels()) add_diagonal(m.diagonal, first, sums);
    }
    if (Base::has_channels()) {
      Base::store_keys(m.common, item, sums, [&](int b, int n, float of_gate) {
        m.gates[b * kTile + Accumulator::row(n)][Base::channel() + Accumulator::col(n)] = of_gate;
      });
    }
    barrier();
    Base::store_beta(m.common, item);
    store_gates(m, item);
  }

 private:
  // Returns the sum of gates before a block of tokens.
  PRIMUS_DEVICE static float before(const Memory& m, int b, int c) {
    return b > 0 ? m.gates[b * kTile - 1][c] : 0.0F;
  }

  // Applies decays to products with states. Products of queries, and of keys as rows, are multiplied by the
  // decay up to their block; products of keys as columns, by the complete decay.
  PRIMUS_DEVICE void decay_states(Memory& m, std::int64_t item, Sums& sums) const {
    const int last = in.tokens(item) - 1;
    float of_last[kPerLane] = {};
    PRIMUS_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; ++n) {
        const int row = b * kTile + Accumulator::row(n), c = Base::channel() + Accumulator::col(n);
        const bool sees = row <= last && m.common.document[row] < 0;
        const bool seen = row <= last && m.common.document[last] <= row;
        const float since = sees ? power_of_two(before(m, b, c)) : 0.0F;
        const float until = seen ? power_of_two(m.gates[last][c] - m.gates[row][c]) : 0.0F;
        sums.q[b].at[n] *= in.scale * since;
        sums.looking[b].at[n] *= -since;
        sums.seen[b].at[n] *= until;
        float& of_col = of_last[Accumulator::same_col(n)];
        of_col = multiply_add(sums.seen[b].at[n], to_float(m.common.k[row][c]), of_col);
      }
    }
    const float* const through = to.write + item * kKeys + Base::channel();
    PRIMUS_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float of_states = reduce_row(sums.of_states[half], Plus{});
      const int c = Operand<T>::right_row(half * kPerLane / 2);
      m.of_last[Base::channel() + c] = through[c] * of_states;
    }
    warp_barrier();
    PRIMUS_UNROLL
    for (int n = 0; n < kPerLane; ++n) {
      if (Accumulator::same_col(n) != n) continue;
      const float sum = reduce_col(of_last[n], Plus{});
      if (Accumulator::row(n) == 0) m.of_last[Base::channel() + Accumulator::col(n)] += sum;
    }
  }

  // Returns a right operand: rows of block b of tokens, with decays. If `until` > b, a row has the decay from
  // the row's token to the start of block `until`. If `until` is b, a row has the decay from the start of
  // block b to the row's token.
  PRIMUS_DEVICE static Operand<T> decayed(const Memory& m, const T (*rows)[kKeys + kPad], int b, int until) {
    auto x = load_right<true>(&rows[b * kTile][Base::channel()], kKeys + kPad);
    PRIMUS_UNROLL
    for (int n = 0; n < kPerLane; ++n) {
      const int c = Base::channel() + Operand<T>::right_row(n);
      const float decay = before(m, until, c) - m.gates[b * kTile + Operand<T>::right_k(n)][c];
      x.at[n] = from_float<T>(to_float(x.at[n]) * power_of_two(until > b ? decay : -decay));
    }
    return x;
  }

  // Adds the products of each block of tokens with all earlier blocks.
  PRIMUS_DEVICE static void multiply_pairs(const Memory& m, Sums& sums) {
    const auto left = [](const T* tile) { return load_left<false>(tile, kRows + kPad); };
    const auto transposed = [](const T* tile) { return load_left<true>(tile, kRows + kPad); };
    PRIMUS_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      if (b > 0) {
        const auto queries = decayed(m, m.common.q, b, b), keys = decayed(m, m.common.k, b, b);
        PRIMUS_UNROLL
        for (int a = 0; a < b; ++a) {
          const auto earlier = decayed(m, m.common.k, a, b);
          multiply(sums.q[b], left(&m.pairs.read[b * kTile][a * kTile]), earlier);
          multiply(sums.looking[b], left(&m.pairs.write[b * kTile][a * kTile]), earlier);
          Accumulator of_earlier;
          of_earlier.clear();
          multiply(of_earlier, transposed(&m.pairs.read[b * kTile][a * kTile]), queries);
          multiply(of_earlier, transposed(&m.pairs.by_beta[b * kTile][a * kTile]), keys);
          PRIMUS_UNROLL
          for (int n = 0; n < kPerLane; ++n) {
            const int c = Base::channel() + Accumulator::col(n);
            const float decay = power_of_two(before(m, b, c) - m.gates[a * kTile + Accumulator::row(n)][c]);
            sums.seen[a].at[n] = multiply_add(decay, of_earlier.at[n], sums.seen[a].at[n]);
          }
        }
      }
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; ++n) {
        const int c = Base::channel() + Accumulator::col(n);
        const float decay = power_of_two(m.gates[b * kTile + Accumulator::row(n)][c] - before(m, b, c));
        sums.q[b].at[n] *= decay;
        sums.looking[b].at[n] *= decay;
      }
    }
  }

  // Sums the products of all pairs of tokens of one block, for one channel.
  PRIMUS_DEVICE static void sum_within(Memory& m, int b, int c) {
    const int first = b * kTile, to_row = b % kTogether * kTile;
    float keys[kTile], gates[kTile], seen[kTile];
    PRIMUS_UNROLL
    for (int j = 0; j < kTile; ++j) {
      keys[j] = to_float(m.common.k[first + j][c]);
      gates[j] = m.gates[first + j][c];
      seen[j] = 0;
    }
    // Loops over rows are not unrolled, so that the instructions of the loops stay in the cache.
    PRIMUS_UNROLL_BY(1)
    for (int i = 0; i < kTile / 2; ++i) sum_row<kTile / 2>(m, first, i, to_row, c, keys, gates, seen);
    PRIMUS_UNROLL_BY(1)
    for (int i = kTile / 2; i < kTile; ++i) sum_row<kTile>(m, first, i, to_row, c, keys, gates, seen);
    PRIMUS_UNROLL
    for (int j = 0; j < kTile; ++j) m.diagonal.seen[to_row + j][c] = seen[j];
  }
  // Sums the pairs of token i with the first kCount tokens of its block. The matrices are zero for tokens
  // after token i.
  template <int kCount>
  PRIMUS_DEVICE static void sum_row(Memory& m, int first, int i, int to_row, int c,
                                    const float (&keys)[kTile], const float (&gates)[kTile],
                                    float (&seen)[kTile]) {
    const int row = first + i;
    const float query = to_float(m.common.q[row][c]), key = m.common.beta[row] * to_float(m.common.k[row][c]);
    const float gate = m.gates[row][c];
    float d_query = 0, d_key = 0;
    PRIMUS_UNROLL
    for (int half = 0; half < kCount; half += 8) {
      float read[8], write[8];
      load<8>(&m.pairs.read[row][first + half], read);
      load<8>(&m.pairs.write[row][first + half], write);
      PRIMUS_UNROLL
      for (int n = 0; n < 8; ++n) {
        const int j = half + n;
        const float decay = power_of_two(::fminf(gate - gates[j], 0.0F)), other = keys[j] * decay;
        d_query = multiply_add(read[n], other, d_query);
        d_key = multiply_add(write[n], other, d_key);
        seen[j] = multiply_add(multiply_add(read[n], query, write[n] * key), decay, seen[j]);
      }
    }
    m.diagonal.q[to_row + i][c] = d_query;
    m.diagonal.looking[to_row + i][c] = d_key;
  }
  PRIMUS_DEVICE static void add_diagonal(const Diagonal& from, int first, Sums& sums) {
    PRIMUS_UNROLL
    for (int i = 0; i < kTogether; ++i) {
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; ++n) {
        const int row = i * kTile + Accumulator::row(n), c = Base::channel() + Accumulator::col(n);
        sums.q[first + i].at[n] += from.q[row][c];
        sums.looking[first + i].at[n] += from.looking[row][c];
        sums.seen[first + i].at[n] += from.seen[row][c];
      }
    }
  }

  // Stores the gradients of gates. The gradient of a gate is a sum over the gate's token and all later
  // tokens.
  PRIMUS_DEVICE void store_gates(const Memory& m, std::int64_t item) const {
    const int c = thread();
    if (c >= in.key_dim) return;
    const std::int64_t stride = in.all_heads * in.key_dim;
    float* const g = d.g + (in.row(item) * in.all_heads + in.head(item)) * in.key_dim + c;
    float sum = m.of_last[c];
    for (int i = in.tokens(item) - 1; i >= 0; --i) {
      sum += m.gates[i][c];
      g[i * stride] = m.common.document[i] == i ? 0.0F : sum;
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
