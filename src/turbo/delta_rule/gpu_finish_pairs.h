// Products of the tokens of a chunk with each other, for gradients with a gate per key channel
// (gpu_finish_channels.h).
//
// The decay between tokens of two blocks is a product of two factors <= 1, as in the forward pass
// (gpu_chunks.h). Therefore the gradients between blocks are products on matrix units, and so are the
// gradients between the two halves of a block. Within a half of 8 tokens, a lane sums the pairs of tokens for
// its own sums.
#pragma once

#include "turbo/delta_rule/gpu_finish.h"

namespace primus::turbo::PRIMUS_GPU {

template <class T, int kKeys>
struct DeltaFinishPairs : DeltaFinish<T, kKeys, true> {
  using Base = DeltaFinish<T, kKeys, true>;
  using Base::kThreads;
  using Sums = typename Base::Sums;
  using Rest = typename Base::Rest;

  static constexpr int kHalfTile = kTile / 2;
  struct Memory {
    typename Base::Common common;
    float gates[kRows][kKeys + 4];  // sums of gates in base 2; overwritten by their gradients at the end
    float of_last[kKeys];  // contributions of states and keys to the gradient of the sum of a chunk's gates
    float of_part[kThreads / kKeys][kKeys];  // sums of the gradients of some tokens' gates
    union {
      typename Base::Part part;
      Rest rest;
    };
  };

  // Returns the sum of gates before a token.
  PRIMUS_DEVICE static float before(const Memory& m, int token, int c) {
    return token > 0 ? m.gates[token - 1][c] : 0.0F;
  }

  // Adds the products of each block of tokens with all earlier blocks.
  PRIMUS_DEVICE static void multiply_rows(const Memory& m, Sums& sums) {
    const auto left = [](const T* tile) { return load_left<false>(tile, kRows + kPad); };
    PRIMUS_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      PRIMUS_UNROLL
      for (int a = 0; a < b; ++a) {
        const auto earlier = decayed<true>(m, m.common.k, a, b * kTile);
        multiply(sums.first[b], left(&m.rest.pairs.read[b * kTile][a * kTile]), earlier);
        multiply(sums.second[b], left(&m.rest.pairs.write[b * kTile][a * kTile]), earlier);
      }
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; ++n) {
        const int c = Base::channel() + Accumulator::col(n);
        const float decay =
            power_of_two(m.gates[b * kTile + Accumulator::row(n)][c] - before(m, b * kTile, c));
        sums.first[b].at[n] *= decay;
        sums.second[b].at[n] *= decay;
      }
    }
  }
  PRIMUS_DEVICE static void multiply_columns(const Memory& m, Sums& sums) {
    const auto left = [](const T* tile) { return load_left<true>(tile, kRows + kPad); };
    PRIMUS_UNROLL
    for (int b = 1; b < kBlocks; ++b) {
      const auto queries = decayed<false>(m, m.common.q, b, b * kTile);
      const auto keys = decayed<false>(m, m.common.k, b, b * kTile);
      PRIMUS_UNROLL
      for (int a = 0; a < b; ++a) {
        Accumulator of_earlier;
        of_earlier.clear();
        multiply(of_earlier, left(&m.rest.pairs.read[b * kTile][a * kTile]), queries);
        multiply(of_earlier, left(&m.rest.pairs.by_beta[b * kTile][a * kTile]), keys);
        PRIMUS_UNROLL
        for (int n = 0; n < kPerLane; ++n) {
          const int c = Base::channel() + Accumulator::col(n);
          const float gate = m.gates[a * kTile + Accumulator::row(n)][c];
          const float decay = power_of_two(before(m, b * kTile, c) - gate);
          sums.first[a].at[n] = multiply_add(decay, of_earlier.at[n], sums.first[a].at[n]);
        }
      }
    }
  }

  // Calls add(block, first sums, second sums) for each block. The loop is not unrolled, so that its
  // instructions stay in the cache; therefore the blocks of sums rotate.
  template <class AddBlock>
  PRIMUS_DEVICE static void add_blocks(Sums& sums, AddBlock add) {
    const auto rotate = [](Accumulator(&blocks)[kBlocks]) {
      const Accumulator first = blocks[0];
      PRIMUS_UNROLL
      for (int b = 0; b + 1 < kBlocks; ++b) blocks[b] = blocks[b + 1];
      blocks[kBlocks - 1] = first;
    };
    PRIMUS_UNROLL_BY(1)
    for (int b = 0; b < kBlocks; ++b) {
      add(b, sums.first[0], sums.second[0]);
      rotate(sums.first);
      rotate(sums.second);
    }
  }

  // Adds the pairs of a block of tokens to its query gradients, and to the rows' part of its key gradients.
  // The matrices are zero for later tokens.
  PRIMUS_DEVICE static void add_rows(const Memory& m, int b, Accumulator& query, Accumulator& key) {
    const auto& pairs = m.rest.pairs;
    const Accumulator gates = gates_of(m, b);
    {
      const auto earlier = half_decayed<true>(m, m.common.k, b);
      Accumulator read, write;
      read.clear();
      write.clear();
      multiply(read, load_left<false>(&pairs.read[b * kTile][b * kTile], kRows + kPad), earlier);
      multiply(write, load_left<false>(&pairs.write[b * kTile][b * kTile], kRows + kPad), earlier);
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; ++n) {
        if (Accumulator::slot(n) == 0) continue;  // the rows of the first half
        const int c = Base::channel() + Accumulator::col(n);
        const float decay = power_of_two(gates.at[n] - m.gates[b * kTile + kHalfTile - 1][c]);
        query.at[n] = multiply_add(decay, read.at[n], query.at[n]);
        key.at[n] = multiply_add(decay, write.at[n], key.at[n]);
      }
    }
    for_each_pair(b, [&](int n, int token, int c) {
      const int row = b * kTile + Accumulator::row(n);
      const float read = to_float(pairs.read[row][token]), write = to_float(pairs.write[row][token]);
      float gate[2], seen[2];
      load<2>(&m.gates[token][c], gate);
      load<2>(&m.common.k[token][c], seen);
      PRIMUS_UNROLL
      for (int next = 0; next < 2; ++next) {
        const float other = seen[next] * decay_between(gates.at[n + next], gate[next]);
        query.at[n + next] = multiply_add(read, other, query.at[n + next]);
        key.at[n + next] = multiply_add(write, other, key.at[n + next]);
      }
    });
  }
  // Adds the pairs of a block of tokens to the columns' part of its key gradients.
  PRIMUS_DEVICE static void add_columns(const Memory& m, int b, Accumulator& seen) {
    const auto& pairs = m.rest.pairs;
    const Accumulator gates = gates_of(m, b);
    {
      Accumulator sum;
      sum.clear();
      multiply(sum, load_left<true>(&pairs.read[b * kTile][b * kTile], kRows + kPad),
               half_decayed<false>(m, m.common.q, b));
      multiply(sum, load_left<true>(&pairs.by_beta[b * kTile][b * kTile], kRows + kPad),
               half_decayed<false>(m, m.common.k, b));
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; ++n) {
        if (Accumulator::slot(n) == 1) continue;  // the rows of the second half
        const int c = Base::channel() + Accumulator::col(n);
        const float decay = power_of_two(m.gates[b * kTile + kHalfTile - 1][c] - gates.at[n]);
        seen.at[n] = multiply_add(decay, sum.at[n], seen.at[n]);
      }
    }
    for_each_pair(b, [&](int n, int token, int c) {
      const int column = b * kTile + Accumulator::row(n);
      const float read = to_float(pairs.read[token][column]), write = to_float(pairs.by_beta[token][column]);
      float gate[2], query[2], key[2];
      load<2>(&m.gates[token][c], gate);
      load<2>(&m.common.q[token][c], query);
      load<2>(&m.common.k[token][c], key);
      PRIMUS_UNROLL
      for (int next = 0; next < 2; ++next) {
        const float of_row = multiply_add(read, query[next], write * key[next]);
        const float decay = decay_between(gate[next], gates.at[n + next]);
        seen.at[n + next] = multiply_add(of_row, decay, seen.at[n + next]);
      }
    });
  }

 private:
  // Returns a right operand: rows of block b of tokens, with the decay between the row's token and the start
  // of token `at`. The decay is <= 1 for tokens before `at` if kEarlier is set, else for the other tokens.
  template <bool kEarlier>
  PRIMUS_DEVICE static Operand<T> decayed(const Memory& m, const T (*rows)[kKeys + kPad], int b, int at) {
    auto x = load_right<true>(&rows[b * kTile][Base::channel()], kKeys + kPad);
    PRIMUS_UNROLL
    for (int n = 0; n < kPerLane; ++n) {
      const int c = Base::channel() + Operand<T>::right_row(n);
      const float decay = before(m, at, c) - m.gates[b * kTile + Operand<T>::right_k(n)][c];
      x.at[n] = from_float<T>(to_float(x.at[n]) * power_of_two(kEarlier ? decay : -decay));
    }
    return x;
  }
  // Like decayed(), for one half of the block's tokens: the half before token `at` if kEarlier is set, else
  // the half that begins with token `at`. The other half is zero.
  template <bool kEarlier>
  PRIMUS_DEVICE static Operand<T> half_decayed(const Memory& m, const T (*rows)[kKeys + kPad], int b) {
    auto x = load_right<true>(&rows[b * kTile][Base::channel()], kKeys + kPad);
    PRIMUS_UNROLL
    for (int n = 0; n < kPerLane; ++n) {
      const int c = Base::channel() + Operand<T>::right_row(n), k = Operand<T>::right_k(n);
      const float decay = m.gates[b * kTile + kHalfTile - 1][c] - m.gates[b * kTile + k][c];
      const bool there = (k < kHalfTile) == kEarlier;
      x.at[n] = from_float<T>(there ? to_float(x.at[n]) * power_of_two(kEarlier ? decay : -decay) : 0.0F);
    }
    return x;
  }

  // Returns the sums of gates at a lane's elements of block b.
  PRIMUS_DEVICE static Accumulator gates_of(const Memory& m, int b) {
    Accumulator gates;
    PRIMUS_UNROLL
    for (int n = 0; n < kPerLane; ++n)
      gates.at[n] = m.gates[b * kTile + Accumulator::row(n)][Base::channel() + Accumulator::col(n)];
    return gates;
  }
  // Calls visit(element, token, column) for the elements n and n + 1 of the lane, and for the tokens of the
  // same half of the block. `column` is the column of element n.
  template <class Visit>
  PRIMUS_DEVICE static void for_each_pair(int b, Visit visit) {
    PRIMUS_UNROLL_BY(2)
    for (int i = 0; i < kHalfTile; ++i) {
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; n += 2)
        visit(n, b * kTile + Accumulator::slot(n) * kHalfTile + i, Base::channel() + Accumulator::col(n));
    }
  }
  PRIMUS_DEVICE static float decay_between(float later, float earlier) {
    return power_of_two(::fminf(later - earlier, 0.0F));
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
