// The delta rule's backward pass on matrix units. The backward pass first runs DeltaPrepare and DeltaAdvance
// (gpu_chunks.h), and then three further kernels:
//
// - DeltaRetreat (here), from the last chunk to the first, computes the gradients of U and of states.
// - DeltaFinishHeads or DeltaFinishChannels (gpu_finish_heads.h, gpu_finish_channels.h), for all chunks at
//   once, compute z = (I + L)^-T dU. z is dV up to the factor beta. From z, U and the states, these kernels
//   compute the gradients of gates, of beta, and of queries and keys of value heads.
// - DeltaChunkKeys (gpu_chunk_keys.h), for all chunks at once, adds the query and key gradients of the value
//   heads that share a key head, and passes the sums backward through the normalisation.
#pragma once

#include "turbo/delta_rule/gpu_advance.h"

namespace primus::turbo::PRIMUS_GPU {

template <class T>
struct DeltaChunkGradients {
  const T* out;     // gradient of the output, in the caller's tensor
  Bytes16* u;       // gradient of U, in the layout of DeltaChunks::u
  Bytes16* states;  // gradient of the state after the chunk, in the layout of DeltaChunks::states
  float *q, *k;     // [kRows, key_dim] per item: gradients of queries and keys
  T* qkv;           // gradient of the inputs, in the caller's tensor
  float *g, *beta;
};

// A block processes a head of a sequence and two strips of value columns. Two warps share a strip, and each
// warp has half of the keys (see DeltaAdvance).
template <class T, int kKeys, bool kByChannel>
struct DeltaRetreat : DeltaChunkKernel<T, kKeys, kByChannel> {
  using Base = DeltaChunkKernel<T, kKeys, kByChannel>;
  using Base::in, Base::to;
  DeltaChunkGradients<T> d;
  static constexpr int kFactors = Base::kFactors, kOwn = Base::kKeyTiles / 2;
  static constexpr int kStrips = 2, kThreads = kStrips * 2 * kWarp, kColumns = kStrips * kStrip, kStages = 2;

  struct Stage {
    T q[kRows][kKeys + kPad], k[kRows][kKeys + kPad], w[kRows][kKeys + kPad];
    T p[kRows][kRows + kPad];
    T out[kRows][kColumns + kPad];
    alignas(16) float factors[kFactors];
    alignas(16) float read[kByChannel ? 1 : kRows];  // unused with gates per channel, because q then includes
                                                     // the factors
  };
  struct Memory {
    Stage stages[kStages];
    DeltaExchange<kStrips * 2> exchange;
  };

  PRIMUS_DEVICE void operator()() const {
    Memory& m = *reinterpret_cast<Memory*>(dynamic_shared());
    const std::int64_t slices = (to.strips + kStrips - 1) / kStrips, of_head = block() / slices;
    const std::int64_t first = block() % slices * kStrips, strip = first + warp() / 2;
    const bool there = strip < to.strips;
    DeltaPlace copied = in.place(of_head / in.heads, in.chunks - 1, of_head % in.heads);
    std::int64_t item = copied.item;
    begin_copies(m.stages[0], copied, first);
    end_group_of_copies();
    Accumulator state[kOwn];
    PRIMUS_UNROLL
    for (int c = 0; c < kOwn; ++c) state[c].clear();
    std::int64_t chunk = in.chunks - 1;
    for (int stage = 0; chunk >= 0; --chunk, stage = 1 - stage, item -= in.heads) {
      wait_for_copies<0>();
      barrier();
      copied = in.moved(copied, -1);
      if (chunk > 0) begin_copies(m.stages[1 - stage], copied, first);
      end_group_of_copies();
      const Stage& now = m.stages[stage];
      Accumulator u[kBlocks];
      if (there) read(now, item, strip, state, u);
      if (there) m.exchange.give(u);
      barrier();
      if (!there) continue;
      m.exchange.take(u);
      pass(now, item, strip, u, state);
    }
  }

 private:
  PRIMUS_DEVICE static int first_tile() { return warp() % 2 * kOwn; }
  PRIMUS_DEVICE static Operand<T> output_gradient(const Stage& now, int t) {
    return load_left<true>(&now.out[t * kTile][warp() / 2 * kStrip], kColumns + kPad);
  }
  // Sets u to this warp's half of the gradient of U. The gradient has contributions of the state after the
  // chunk and of the outputs; a warp adds the outputs of half of the tokens. Also stores the state.
  PRIMUS_DEVICE void read(const Stage& now, std::int64_t item, std::int64_t strip,
                          const Accumulator (&state)[kOwn], Accumulator (&u)[kBlocks]) const {
    PRIMUS_UNROLL
    for (int t = 0; t < kBlocks; ++t) u[t].clear();
    Operand<T> right[2][kBlocks];
    const auto load_k = [&](int c) {
      PRIMUS_UNROLL
      for (int t = 0; t < kBlocks; ++t)
        right[c % 2][t] = load_right<false>(&now.k[t * kTile][(first_tile() + c) * kTile], kKeys + kPad);
    };
    load_k(0);
    Bytes16* const states =
        d.states + ((item * to.strips + strip) * Base::kKeyTiles + first_tile()) * kWarp + lane();
    PRIMUS_UNROLL
    for (int c = 0; c < kOwn; ++c) {
      if (c + 1 < kOwn) load_k(c + 1);
      const auto rounded = to_left<T>(state[c]);
      states[c * kWarp] = std::bit_cast<Bytes16>(rounded);
      PRIMUS_UNROLL
      for (int t = 0; t < kBlocks; ++t) multiply(u[t], rounded, right[c % 2][t]);
    }
    PRIMUS_UNROLL
    for (int t = 0; t < kBlocks; ++t) {
      // One warp computes the even blocks of tokens, and the second warp the odd blocks.
      Accumulator by_read;
      by_read.clear();
      if (t % 2 == warp() % 2) {
        PRIMUS_UNROLL
        for (int i = t; i < kBlocks; ++i)
          multiply(by_read, output_gradient(now, i),
                   load_right<true>(&now.p[i * kTile][t * kTile], kRows + kPad));
      }
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; ++n)
        u[t].at[n] = multiply_add(kByChannel ? 1.0F : now.factors[t * kTile + Accumulator::col(n)],
                                  u[t].at[n], in.scale * by_read.at[n]);
    }
  }
  PRIMUS_DEVICE void pass(const Stage& now, std::int64_t item, std::int64_t strip,
                          const Accumulator (&u)[kBlocks], Accumulator (&state)[kOwn]) const {
    PRIMUS_UNROLL
    for (int c = 0; c < kOwn; ++c) {
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; ++n)
        state[c].at[n] *= now.factors[kByChannel ? (first_tile() + c) * kTile + Accumulator::col(n) : kRows];
    }
    Operand<T> queries[2][kOwn], w[2][kOwn];
    const auto load_rows = [&](int t) {
      PRIMUS_UNROLL
      for (int c = 0; c < kOwn; ++c) {
        const int column = (first_tile() + c) * kTile;
        queries[t % 2][c] = load_right<true>(&now.q[t * kTile][column], kKeys + kPad);
        w[t % 2][c] = load_right<true>(&now.w[t * kTile][column], kKeys + kPad);
      }
    };
    load_rows(0);
    Bytes16* const kept = d.u + (item * to.strips + strip) * kBlocks * kWarp + lane();
    PRIMUS_UNROLL
    for (int t = 0; t < kBlocks; ++t) {
      if (t + 1 < kBlocks) load_rows(t + 1);
      auto out = output_gradient(now, t);
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; ++n)
        out.at[n] = from_float<T>(to_float(out.at[n]) * in.scale *
                                  (kByChannel ? 1.0F : now.read[t * kTile + Operand<T>::left_k(n)]));
      const auto rounded = to_left<T>(u[t]);
      if (t % 2 == warp() % 2) kept[t * kWarp] = std::bit_cast<Bytes16>(rounded);
      PRIMUS_UNROLL
      for (int c = 0; c < kOwn; ++c) {
        multiply(state[c], out, queries[t % 2][c]);
        multiply(state[c], rounded, w[t % 2][c]);
      }
    }
  }
  PRIMUS_DEVICE void begin_copies(Stage& stage, const DeltaPlace& place, std::int64_t first) const {
    const std::int64_t item = place.item;
    const int tokens = place.tokens;
    if constexpr (kByChannel) {
      const std::int64_t keys = item * kRows * kKeys;
      Base::template copy_rows<kThreads, kKeys>(to.q + keys, kKeys, kRows, kKeys, stage.q);
      Base::template copy_rows<kThreads, kKeys>(to.k + keys, kKeys, kRows, kKeys, stage.k);
    } else {
      const T* const queries = this->queries(place);
      Base::template copy_rows<kThreads, kKeys>(queries, in.width, tokens, in.key_dim, stage.q);
      Base::template copy_rows<kThreads, kKeys>(queries + in.k_column, in.width, tokens, in.key_dim, stage.k);
    }
    Base::template copy_rows<kThreads, kRows>(to.p + item * kRows * kRows, kRows, kRows, kRows, stage.p);
    const std::int64_t column = place.head * in.value_dim + first * kStrip,
                       width = in.all_heads * in.value_dim;
    Base::template copy_rows<kThreads, kColumns>(d.out + place.row * width + column, width, tokens,
                                                 in.value_dim - first * kStrip, stage.out);
    Base::template copy_rows<kThreads, kKeys>(to.w + item * kRows * kKeys, kKeys, kRows, kKeys, stage.w);
    if (thread() < kFactors / 4)
      copy_async(&stage.factors[thread() * 4], to.write + item * kFactors + thread() * 4, true);
    if (!kByChannel && thread() < kRows / 4)
      copy_async(&stage.read[thread() * 4], to.read + item * kRows + thread() * 4, true);
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
