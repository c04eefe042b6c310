// The first kernel of the delta rule's forward pass on matrix units (gpu_chunks.h).
//
// The system is (I + L) X = B with L strictly lower triangular, in blocks of 16 tokens. T[i] is the inverse
// of I + L[i][i], by substitution in fp32; then X[i] = T[i] B[i] - sum over j < i of (T[i] L[i][j]) X[j].
// The transposed result X[j] of one product has the layout of an operand of the next product. Therefore X[j]
// stays in registers.
#pragma once

#include "turbo/delta_rule/gpu_chunk_scores.h"

namespace primus::turbo::PRIMUS_GPU {

template <class T, int kKeys, bool kByChannel>
struct DeltaPrepare : DeltaChunkScores<T, kKeys, kByChannel> {
  using Base = DeltaChunkScores<T, kKeys, kByChannel>;
  using Base::in, Base::to;
  using typename Base::Memory;
  static constexpr int kThreads = Base::kThreads, kWarps = Base::kWarps, kWide = Base::kWide;

  PRIMUS_DEVICE void operator()() const {
    Memory& m = *reinterpret_cast<Memory*>(dynamic_shared());
    const DeltaPlace place = in.place(block());
    const std::int64_t item = place.item;
    const int tokens = place.tokens;
    const T* const queries = this->queries(place);
    Base::template copy_rows<kThreads, kKeys, kByChannel>(queries + in.k_column, in.width, tokens, in.key_dim,
                                                          m.k);
    Base::template copy_rows<kThreads, kKeys, kByChannel>(queries, in.width, tokens, in.key_dim, m.wide);
    end_group_of_copies();
    if constexpr (kByChannel) {
      sum_gates_of_channels<kThreads>(in, place, m.gates);
    } else {
      Base::sum_gates_of_head(in, place, m.sums);
    }
    if (const int i = thread() - kThreads / 2; i >= 0 && i < kRows) {
      m.beta[i] = in.beta_of(place, i);
      m.document[i] = i < tokens ? in.document(place, i) : kRows;
    }
    wait_for_copies<0>();
    barrier();
    Base::find_factors(m);
    barrier();
    if constexpr (kByChannel) {
      Base::scores_by_channel(m);
      barrier();
      decay_by_channel(m, item, tokens);
    } else {
      Base::scores_by_head(m);
      decay_by_head(m, item, tokens);
    }
    barrier();
    const T* const values = in.qkv + place.row * in.width + in.v_column + place.head * in.value_dim;
    Base::template copy_rows<kThreads, kPart, kByChannel>(values, in.width, tokens, in.value_dim, m.wide);
    end_group_of_copies();
    substitute(m);
    if (to.back) substitute_back(m, to.back + item * kRows * kRows);
    for (int at = thread(); at < kRows * kRows / 8; at += kThreads) {
      const int i = at / (kRows / 8), j = at % (kRows / 8) * 8;
      using Line = Pack<T, 8>;
      *reinterpret_cast<Line*>(to.p + (item * kRows + i) * kRows + j) =
          *reinterpret_cast<const Line*>(&m.p[i][j]);
    }
    barrier();
    Operand<T> x[kBlocks];
    const auto& diagonal = m.solution.keys;
    for (int c = warp() * kTile; c < kKeys; c += kWarps * kTile) {
      solve(m, &m.k[0][c], kKeys + kPad, &diagonal[0][0], kTile * (kTile + kPad), kTile + kPad, x);
      // The result overwrites the keys from which it was computed, and which only this warp reads.
      warp_barrier();
      PRIMUS_UNROLL
      for (int i = 0; i < kBlocks; ++i) {
        PRIMUS_UNROLL
        for (int n = 0; n < kPerLane; ++n)
          m.k[i * kTile + Operand<T>::left_k(n)][c + Operand<T>::left_row(n)] = x[i].at[n];
      }
    }
    for (std::int64_t first = 0; first < to.strips; first += kPartStrips) {
      if (first > 0) {
        barrier();
        Base::template copy_rows<kThreads, kPart, kByChannel>(values + first * kStrip, in.width, tokens,
                                                              in.value_dim - first * kStrip, m.wide);
        end_group_of_copies();
      }
      wait_for_copies<0>();
      barrier();
      if (first == 0) store_w(m, item);
      for (int s = warp(); s < kPartStrips && first + s < to.strips; s += kWarps) {
        solve(m, &m.wide[0][s * kStrip], kWide + kPad, &m.solution.x[0][0], kTile * (kRows + kPad) + kTile,
              kRows + kPad, x);
        Bytes16* const u = this->u_of(item, first + s);
        PRIMUS_UNROLL
        for (int i = 0; i < kBlocks; ++i) u[i * kWarp] = std::bit_cast<Bytes16>(x[i]);
      }
    }
  }

 private:
  PRIMUS_DEVICE void store_w(const Memory& m, std::int64_t item) const {
    constexpr int kPieces = kKeys / 8;
    for (int at = thread(); at < kRows * kPieces; at += kThreads) {
      using Line = Pack<T, 8>;
      *reinterpret_cast<Line*>(to.w + item * kRows * kKeys + at * 8) =
          *reinterpret_cast<const Line*>(&m.k[at / kPieces][at % kPieces * 8]);
    }
  }
  // Computes the gate factors of queries and keys for products with states.
  PRIMUS_DEVICE void decay_by_head(Memory& m, std::int64_t item, int tokens) const {
    const int i = thread(), last = tokens - 1;
    if (i >= kRows) return;
    const float since = i <= last && m.document[i] < 0 ? ::expf(static_cast<float>(m.sums[i])) : 0.0F;
    const float until =
        i <= last && m.document[last] <= i ? ::expf(static_cast<float>(m.sums[last] - m.sums[i])) : 0.0F;
    m.since[i] = since * m.k_factor[i];
    to.read[item * kRows + i] = since * m.q_factor[i];
    float* const write = to.write + item * Base::kFactors;
    write[i] = until * m.k_factor[i];
    if (i == last) write[kRows] = since;
  }
  PRIMUS_DEVICE void decay_by_channel(Memory& m, std::int64_t item, int tokens) const {
    const int last = tokens - 1;
    for (int at = thread(); at < kRows * kKeys / 8; at += kThreads) {
      const int i = at / (kKeys / 8), c = at % (kKeys / 8) * 8;
      const float q_factor = m.q_factor[i], k_factor = m.k_factor[i];
      const bool sees = i <= last && m.document[i] < 0, seen = i <= last && m.document[last] <= i;
      float query[8], key[8], until[8], sum[8], end[8];
      load<8>(&m.wide[i][c], query);
      load<8>(&m.k[i][c], key);
      PRIMUS_UNROLL
      for (int n = 0; n < 8; ++n) {
        sum[n] = m.gates[i][c + n];
        end[n] = m.gates[last][c + n];
        const float since = sees ? power_of_two(sum[n]) : 0.0F;
        until[n] = seen ? key[n] * k_factor * power_of_two(end[n] - sum[n]) : 0.0F;
        query[n] *= q_factor * since;
        key[n] *= k_factor * since;
      }
      const std::int64_t element = (item * kRows + i) * kKeys + c;
      store<8>(to.q + element, query);
      store<8>(to.k + element, until);
      store<8>(&m.k[i][c], key);
      if (i == last) {
        PRIMUS_UNROLL
        for (int n = 0; n < 8; ++n) to.write[item * kKeys + c + n] = sees ? power_of_two(end[n]) : 0.0F;
      }
    }
  }

  // Computes T and T L, block row by block row. A lane processes one column.
  PRIMUS_DEVICE void substitute(Memory& m) const {
    const int own = warp() % kBlocks * kTile, c = warp() / kBlocks * kWarp + lane();
    if (c >= own + kTile) return;
    const bool diagonal = c >= own;
    float x[kTile];
    PRIMUS_UNROLL
    for (int i = 0; i < kTile; ++i) {
      float value = diagonal ? (i == c - own ? 1.0F : 0.0F) : m.l[own + i][c];
      PRIMUS_UNROLL
      for (int j = 0; j < i; ++j) value = multiply_add(-m.l[own + i][own + j], x[j], value);
      x[i] = value;
    }
    const float of_values = diagonal ? m.beta[c] : -1.0F;
    const float of_keys = diagonal ? -m.beta[c] * (kByChannel ? 1.0F : m.since[c]) : 0.0F;
    PRIMUS_UNROLL
    for (int i = 0; i < kTile; ++i) {
      m.solution.x[own + i][c] = from_float<T>(x[i] * of_values);
      if (diagonal) m.solution.keys[own + i][c - own] = from_float<T>(x[i] * of_keys);
    }
  }

  // Computes T and L T, block column by block column. A lane processes one row.
  PRIMUS_DEVICE static void substitute_back(const Memory& m, T* back) {
    const int own = warp() % kBlocks * kTile, row = own + warp() / kBlocks * kWarp + lane();
    if (row >= kRows) return;
    const bool diagonal = row < own + kTile;
    float x[kTile];
    PRIMUS_UNROLL
    for (int c = 0; c < kTile; ++c) x[c] = diagonal ? (c == row - own ? 1.0F : 0.0F) : m.l[row][own + c];
    PRIMUS_UNROLL
    for (int c = kTile - 1; c > 0; --c) {
      PRIMUS_UNROLL
      for (int j = 0; j < c; ++j) x[j] = multiply_add(-m.l[own + c][own + j], x[c], x[j]);
    }
    PRIMUS_UNROLL
    for (int c = 0; c < kTile; c += 8) {
      float piece[8];
      PRIMUS_UNROLL
      for (int n = 0; n < 8; ++n) piece[n] = diagonal ? x[c + n] : -x[c + n];
      store<8>(back + row * kRows + own + c, piece);
    }
  }

  // Sets x to the transposed solution for 16 columns of `b` [kRows, step]; x has one left operand per block
  // of tokens.
  PRIMUS_DEVICE static void solve(const Memory& m, const T* b, int step, const T* diagonal, int to_next,
                                  int diagonal_step, Operand<T> (&x)[kBlocks]) {
    PRIMUS_UNROLL
    for (int i = 0; i < kBlocks; ++i) {
      Accumulator sum;
      sum.clear();
      multiply(sum, load_left<true>(b + i * kTile * step, step),
               load_right<false>(diagonal + i * to_next, diagonal_step));
      PRIMUS_UNROLL
      for (int j = 0; j < i; ++j)
        multiply(sum, x[j], load_right<false>(&m.solution.x[i * kTile][j * kTile], kRows + kPad));
      x[i] = to_left<T>(sum);
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
