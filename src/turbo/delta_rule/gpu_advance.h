// The second kernel of the delta rule's forward pass on matrix units (gpu_chunks.h).
#pragma once

#include "turbo/delta_rule/gpu_chunks.h"

namespace primus::turbo::PRIMUS_GPU {

// Exchanges partial sums between two warps that have half of the keys each.
template <int kWarps>
struct DeltaExchange {
  Bytes16 at[kWarps][kBlocks * 2][kWarp];

  PRIMUS_DEVICE void give(const Accumulator (&sums)[kBlocks]) {
    PRIMUS_UNROLL
    for (int t = 0; t < kBlocks; ++t) {
      const auto lines = std::bit_cast<Lines>(sums[t]);
      at[warp()][2 * t][lane()] = lines.at[0];
      at[warp()][2 * t + 1][lane()] = lines.at[1];
    }
  }
  // Adds the other warp's sums. Call this function after give() and a barrier. Both warps get bitwise equal
  // sums.
  PRIMUS_DEVICE void take(Accumulator (&sums)[kBlocks]) const {
    PRIMUS_UNROLL
    for (int t = 0; t < kBlocks; ++t) {
      const auto more =
          std::bit_cast<Accumulator>(Lines{at[warp() ^ 1][2 * t][lane()], at[warp() ^ 1][2 * t + 1][lane()]});
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; ++n) sums[t].at[n] += more.at[n];
    }
  }

 private:
  struct Lines {
    Bytes16 at[2];
  };
};

// A block handles a head of a sequence and two strips of value columns. Two warps share a strip, and each
// warp has half of the keys. Many small blocks are faster than few large blocks, because the duration of a
// step is that of the products of one warp.
template <class T, int kKeys, bool kByChannel>
struct DeltaAdvance : DeltaChunkKernel<T, kKeys, kByChannel> {
  using Base = DeltaChunkKernel<T, kKeys, kByChannel>;
  using Base::in, Base::to;
  static constexpr int kFactors = Base::kFactors;
  static constexpr int kStrips = 2, kThreads = kStrips * 2 * kWarp, kStages = 3, kOwn = Base::kKeyTiles / 2;

  struct Stage {
    T w[kRows][kKeys + kPad], k[kRows][kKeys + kPad];
    float factors[kFactors];
  };
  struct Memory {
    Stage stages[kStages];
    DeltaExchange<kStrips * 2> exchange;
  };

  PRIMUS_DEVICE void operator()() const {
    Memory& m = *reinterpret_cast<Memory*>(dynamic_shared());
    const std::int64_t slices = (to.strips + kStrips - 1) / kStrips, of_head = block() / slices;
    const std::int64_t strip = block() % slices * kStrips + warp() / 2;
    const bool there = strip < to.strips;
    DeltaPlace copied = in.place(of_head / in.heads, 0, of_head % in.heads);
    const auto copy_next = [&](Stage& stage) {
      if (copied.tokens > 0) begin_copies(stage, copied);
      copied = in.moved(copied, 1);
      end_group_of_copies();
    };
    std::int64_t item = copied.item;
    PRIMUS_UNROLL
    for (int stage = 0; stage + 1 < kStages; ++stage) copy_next(m.stages[stage]);
    Accumulator state[kOwn];
    PRIMUS_UNROLL
    for (int c = 0; c < kOwn; ++c) state[c].clear();
    Bytes16 next[kBlocks] = {};
    if (there) load_u(item, strip, next);
    int stage = 0;
    for (std::int64_t chunk = 0; chunk < in.chunks; ++chunk, item += in.heads) {
      wait_for_copies<kStages - 2>();
      barrier();
      copy_next(m.stages[stage == 0 ? kStages - 1 : stage - 1]);
      const Stage& now = m.stages[stage];
      stage = stage + 1 == kStages ? 0 : stage + 1;
      Accumulator u[kBlocks];
      if (there) say(now, item, strip, state, u);
      if (there) m.exchange.give(u);
      barrier();
      if (!there) continue;
      m.exchange.take(u);
      PRIMUS_UNROLL
      for (int t = 0; t < kBlocks; ++t) {
        const auto values = std::bit_cast<Operand<T>>(next[t]);
        PRIMUS_UNROLL
        for (int n = 0; n < kPerLane; ++n) u[t].at[n] += to_float(values.at[n]);
      }
      if (chunk + 1 < in.chunks) load_u(item + in.heads, strip, next);
      write(now, item, strip, u, state);
    }
  }

 private:
  PRIMUS_DEVICE static int first_tile() { return warp() % 2 * kOwn; }
  // Sets u to this warp's half of W S. Also stores the state.
  PRIMUS_DEVICE void say(const Stage& now, std::int64_t item, std::int64_t strip,
                         const Accumulator (&state)[kOwn], Accumulator (&u)[kBlocks]) const {
    PRIMUS_UNROLL
    for (int t = 0; t < kBlocks; ++t) u[t].clear();
    Operand<T> right[2][kBlocks];
    const auto load_w = [&](int c) {
      PRIMUS_UNROLL
      for (int t = 0; t < kBlocks; ++t)
        right[c % 2][t] = load_right<false>(&now.w[t * kTile][(first_tile() + c) * kTile], kKeys + kPad);
    };
    load_w(0);
    Bytes16* const states = this->state_of(item, strip) + first_tile() * kWarp;
    PRIMUS_UNROLL
    for (int c = 0; c < kOwn; ++c) {
      if (c + 1 < kOwn) load_w(c + 1);
      const auto rounded = to_left<T>(state[c]);
      states[c * kWarp] = std::bit_cast<Bytes16>(rounded);
      PRIMUS_UNROLL
      for (int t = 0; t < kBlocks; ++t) multiply(u[t], rounded, right[c % 2][t]);
    }
  }
  // Decays the state and adds U.
  PRIMUS_DEVICE void write(const Stage& now, std::int64_t item, std::int64_t strip, Accumulator (&u)[kBlocks],
                           Accumulator (&state)[kOwn]) const {
    Operand<T> right[2][kOwn];
    const auto load_k = [&](int t) {
      PRIMUS_UNROLL
      for (int c = 0; c < kOwn; ++c)
        right[t % 2][c] = load_right<true>(&now.k[t * kTile][(first_tile() + c) * kTile], kKeys + kPad);
    };
    load_k(0);
    PRIMUS_UNROLL
    for (int c = 0; c < kOwn; ++c) {
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; ++n)
        state[c].at[n] *= now.factors[kByChannel ? (first_tile() + c) * kTile + Accumulator::col(n) : kRows];
    }
    Bytes16* const kept = this->u_of(item, strip);
    PRIMUS_UNROLL
    for (int t = 0; t < kBlocks; ++t) {
      if (t + 1 < kBlocks) load_k(t + 1);
      auto written = to_left<T>(u[t]);
      if (t / 2 == warp() % 2) kept[t * kWarp] = std::bit_cast<Bytes16>(written);
      if constexpr (!kByChannel) {
        PRIMUS_UNROLL
        for (int n = 0; n < kPerLane; ++n) u[t].at[n] *= now.factors[t * kTile + Accumulator::col(n)];
        written = to_left<T>(u[t]);
      }
      PRIMUS_UNROLL
      for (int c = 0; c < kOwn; ++c) multiply(state[c], written, right[t % 2][c]);
    }
  }
  PRIMUS_DEVICE void begin_copies(Stage& stage, const DeltaPlace& place) const {
    const std::int64_t item = place.item;
    Base::template copy_rows<kThreads, kKeys>(to.w + item * kRows * kKeys, kKeys, kRows, kKeys, stage.w);
    if constexpr (kByChannel) {
      Base::template copy_rows<kThreads, kKeys>(to.k + item * kRows * kKeys, kKeys, kRows, kKeys, stage.k);
    } else {
      Base::template copy_rows<kThreads, kKeys>(this->queries(place) + in.k_column, in.width, place.tokens,
                                                in.key_dim, stage.k);
    }
    if (const int at = thread(); at < kFactors / 4)
      copy_async(&stage.factors[at * 4], to.write + item * kFactors + at * 4, true);
  }
  PRIMUS_DEVICE void load_u(std::int64_t item, std::int64_t strip, Bytes16 (&u)[kBlocks]) const {
    const Bytes16* const from = this->u_of(item, strip);
    PRIMUS_UNROLL
    for (int t = 0; t < kBlocks; ++t) u[t] = from[t * kWarp];
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
