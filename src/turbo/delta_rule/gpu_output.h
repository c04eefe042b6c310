// The last kernel of the delta rule's forward pass on matrix units (gpu_chunks.h).
#pragma once

#include "turbo/delta_rule/gpu_chunks.h"

namespace primus::turbo::PRIMUS_GPU {

// A block processes kPart value columns of one item. Each warp of the block processes one strip of these
// columns.
template <class T, int kKeys, bool kByChannel>
struct DeltaOutput : DeltaChunkKernel<T, kKeys, kByChannel> {
  using Base = DeltaChunkKernel<T, kKeys, kByChannel>;
  using Base::in, Base::to;
  static constexpr int kKeyTiles = Base::kKeyTiles;
  static constexpr int kThreads = kPartStrips * kWarp;
  T* out;

  struct Memory {
    T q[kRows][kKeys + kPad];
    T p[kRows][kRows + kPad];
    T out[kRows][kPart + kPad];
    float factors[kRows];
  };

  static std::int64_t parts(std::int64_t strips) { return blocks_for(strips, kPartStrips); }
  PRIMUS_DEVICE void operator()() const {
    Memory& m = *reinterpret_cast<Memory*>(dynamic_shared());
    const std::int64_t parts = (to.strips + kPartStrips - 1) / kPartStrips;
    const auto own = static_cast<std::uint32_t>(block()), of_item = static_cast<std::uint32_t>(parts);
    const DeltaPlace place = in.place(own / of_item);
    const std::int64_t item = place.item, first = own % of_item * kPartStrips;
    const int tokens = place.tokens;
    if constexpr (kByChannel) {
      Base::template copy_rows<kThreads, kKeys>(to.q + item * kRows * kKeys, kKeys, kRows, kKeys, m.q);
    } else {
      Base::template copy_rows<kThreads, kKeys>(this->queries(place), in.width, tokens, in.key_dim, m.q);
      if (thread() < kRows) m.factors[thread()] = to.read[item * kRows + thread()];
    }
    Base::template copy_rows<kThreads, kRows>(to.p + item * kRows * kRows, kRows, kRows, kRows, m.p);
    end_group_of_copies();
    const std::int64_t strip = first + warp();
    if (strip < to.strips) {
      Operand<T> state[kKeyTiles], u[kBlocks];
      PRIMUS_UNROLL
      for (int c = 0; c < kKeyTiles; ++c)
        state[c] = std::bit_cast<Operand<T>>(this->state_of(item, strip)[c * kWarp]);
      PRIMUS_UNROLL
      for (int t = 0; t < kBlocks; ++t) u[t] = std::bit_cast<Operand<T>>(this->u_of(item, strip)[t * kWarp]);
      wait_for_copies<0>();
      barrier();
      Accumulator sums[kBlocks];
      PRIMUS_UNROLL
      for (int t = 0; t < kBlocks; ++t) {
        sums[t].clear();
        PRIMUS_UNROLL
        for (int c = 0; c < kKeyTiles; ++c)
          multiply(sums[t], state[c], load_right<false>(&m.q[t * kTile][c * kTile], kKeys + kPad));
        if constexpr (!kByChannel) {
          PRIMUS_UNROLL
          for (int n = 0; n < kPerLane; ++n) sums[t].at[n] *= m.factors[t * kTile + Accumulator::col(n)];
        }
        PRIMUS_UNROLL
        for (int j = 0; j <= t; ++j)
          multiply(sums[t], u[j], load_right<false>(&m.p[t * kTile][j * kTile], kRows + kPad));
        PRIMUS_UNROLL
        for (int n = 0; n < kPerLane; ++n)
          m.out[t * kTile + Accumulator::col(n)][warp() * kStrip + Accumulator::row(n)] =
              from_float<T>(in.scale * sums[t].at[n]);
      }
    } else {
      wait_for_copies<0>();
      barrier();
    }
    barrier();
    constexpr int kPieces = kPart / 8;
    for (int at = thread(); at < tokens * kPieces; at += kThreads) {
      const int i = at / kPieces, c = at % kPieces * 8;
      const std::int64_t column = first * kStrip + c;
      if (column >= in.value_dim) continue;
      using Line = Pack<T, 8>;
      *reinterpret_cast<Line*>(out + ((place.row + i) * in.all_heads + place.head) * in.value_dim + column) =
          *reinterpret_cast<const Line*>(&m.out[i][c]);
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
