// The forward pass of attention in bf16 by warpgroups (turbo/gpu/warpgroup.h), on tiles of 128 queries.
//
// A block of three warpgroups computes one tile. The last warpgroup fetches tiles of keys and values, two
// tiles of each at a time. Each of the first two warpgroups computes 64 queries. The two warpgroups issue
// work to the matrix units in turns: one warpgroup multiplies while the other computes weights. Within a
// warpgroup, the scores of one tile of keys and the weighted values of the preceding tile are computed
// concurrently.
#pragma once

#include "turbo/attention/gpu_attended_rows.h"
#include "turbo/gpu/box_copy.h"
#include "turbo/gpu/warpgroup_products.h"
#include "turbo/gpu/warpgroup_results.h"

namespace primus::turbo::PRIMUS_GPU {

template <int kHeadDim, int kValueDim>
struct ForwardWarpgroups {
  static constexpr bool kAlone = true;
  static constexpr int kGroups = 2, kAttending = kGroups * kWarpgroup, kThreads = kAttending + kWarpgroup;
  static constexpr int kGroupRows = 64, kRows = kGroups * kGroupRows, kKeys = 128, kStages = 2;
  using Scores = WarpgroupSums<kKeys>;
  using Sums = WarpgroupSums<kValueDim>;
  using Rows = AttendedRows<kKeys>;
  static constexpr int kSlots = Rows::kSlots;

  // Queries and keys have one panel per 64 columns of the head. Values have one panel for each block of 64
  // keys by 64 columns.
  struct Memory {
    BFloat16 queries[kRows * kHeadDim];
    BFloat16 keys[kStages][kKeys * kHeadDim];
    BFloat16 values[kStages][kKeys * kValueDim];
    Gate queries_full, keys_full[kStages], keys_empty[kStages], values_full[kStages], values_empty[kStages];
    Gate turn[kGroups];
  };
  static constexpr std::size_t kSharedBytes = sizeof(Memory) + kPanelAlignment;

  Visibility visibility;
  BoxMap queries, keys, values;
  const BFloat16* sinks;  // may be null
  BFloat16* out;
  float* lse;  // may be null
  int batch, heads, group, tiles;
  float scale;
  const std::int32_t* unless_zero;  // if not null and the value is 0, the kernel does nothing

  struct Tile {
    int sequence, head, row;
    int begin, steps;  // the first key, and the number of key tiles
  };

  PRIMUS_DEVICE void operator()() const {
#if PRIMUS_WARPGROUPS
    if (unless_zero && *unless_zero == 0) return;
    Memory& memory = shared_panels<Memory>();
    if (thread() == 0) {
      memory.queries_full.init(1);
      for (int i = 0; i < kStages; ++i) {
        memory.keys_full[i].init(1), memory.values_full[i].init(1);
        memory.keys_empty[i].init(kAttending / kWarp), memory.values_empty[i].init(kAttending / kWarp);
      }
      for (Gate& turn : memory.turn) turn.init(kWarpgroup / kWarp);
      show_gates();
    }
    barrier();
    const Tile tile = of_block();
    if (thread() < kAttending) {
      acquire_registers<232>();
      attend(memory, tile);
    } else {
      release_registers<40>();
      if (thread() == kAttending) fetch(memory, tile);
    }
#endif
  }

  // Returns the tile of this block. The blocks of the last queries of a sequence start first, because these
  // queries see the most keys.
  PRIMUS_DEVICE Tile of_block() const {
    Tile tile;
    const int index = static_cast<int>(block()), after_heads = index / heads;
    tile.head = index % heads;
    tile.sequence = after_heads % batch;
    tile.row = (tiles - 1 - after_heads / batch) * kRows;
    const std::int64_t begin = visibility.keys(tile.sequence, tile.row).begin / kKeys * kKeys;
    const std::int64_t end =
        visibility.keys(tile.sequence, smaller(tile.row + kRows, visibility.seq_q) - 1).end;
    tile.begin = static_cast<int>(begin);
    tile.steps = end > begin ? static_cast<int>((end - begin + kKeys - 1) / kKeys) : 0;
    return tile;
  }

  // ---- Operands ---------------------------------------------------------------------------------

  // Copies operands in the order of their use. The first two warpgroups wait for every copy.
  PRIMUS_DEVICE void fetch(Memory& memory, const Tile& tile) const {
    if (tile.steps == 0) return;
    const int kv_head = tile.head / group;
    memory.queries_full.arrive_and_expect(sizeof(memory.queries));
    PRIMUS_UNROLL
    for (int i = 0; i < kHeadDim; i += kPanelLine) {
      copy_box(memory.queries + i * kRows, queries, tile.head * kHeadDim + i, tile.row, tile.sequence,
               memory.queries_full);
    }
    for (int step = 0; step <= tile.steps; ++step) {
      if (step < tile.steps) {
        const int slot = step % kStages;
        Gate& full = memory.keys_full[slot];
        memory.keys_empty[slot].wait(step / kStages % 2 ^ 1);
        full.arrive_and_expect(sizeof(memory.keys[slot]));
        PRIMUS_UNROLL
        for (int i = 0; i < kHeadDim; i += kPanelLine) {
          copy_box(memory.keys[slot] + i * kKeys, keys, kv_head * kHeadDim + i, tile.begin + step * kKeys,
                   tile.sequence, full);
        }
      }
      if (step > 0) {
        const int before = step - 1, slot = before % kStages;
        Gate& full = memory.values_full[slot];
        memory.values_empty[slot].wait(before / kStages % 2 ^ 1);
        full.arrive_and_expect(sizeof(memory.values[slot]));
        PRIMUS_UNROLL
        for (int key = 0; key < kKeys; key += kPanelLine) {
          PRIMUS_UNROLL
          for (int i = 0; i < kValueDim; i += kPanelLine) {
            copy_box(memory.values[slot] + key * kValueDim + i * kPanelLine, values, kv_head * kValueDim + i,
                     tile.begin + before * kKeys + key, tile.sequence, full);
          }
        }
      }
    }
  }

  // ---- Attention --------------------------------------------------------------------------------

  PRIMUS_DEVICE void attend(Memory& memory, const Tile& tile) const {
    const int me = thread() / kWarpgroup, first_row = tile.row + me * kGroupRows;
    Rows rows(visibility, tile.sequence, tile.begin, first_row, kGroupRows);
    Scores scores;
    Sums sums;
    sums.clear();
    if (tile.steps > 0) {
      LeftInRegisters weights[kKeys / 16];
      memory.queries_full.wait(0);
      memory.keys_full[0].wait(0);
      begin_products();
      multiply_keys(memory, scores, me, 0);
      end_group_of_products();
      wait_for_sums(scores);
      release(memory.keys_empty[0]);
      rows.softmax(scores, scale, 0);
      PRIMUS_UNROLL
      for (int d = 0; d < kKeys / 16; ++d) weights[d] = to_left(scores, d);
      for (int step = 1; step < tile.steps; ++step) {
        const int slot = step % kStages, slot_before = (step - 1) % kStages;
        memory.keys_full[slot].wait(step / kStages % 2);
        // The two warpgroups take turns; the first warpgroup begins.
        memory.turn[me].wait((step + (me == 0 ? 0 : 1)) % 2);
        settle(sums);
        PRIMUS_UNROLL
        for (LeftInRegisters& left : weights) settle(left);
        begin_products();
        multiply_keys(memory, scores, me, slot);
        end_group_of_products();
        memory.values_full[slot_before].wait((step - 1) / kStages % 2);
        begin_products();
        multiply_values(memory, sums, weights, slot_before);
        end_group_of_products();
        release(memory.turn[1 - me]);
        wait_for_sums<1>(scores);
        release(memory.keys_empty[slot]);
        rows.softmax(scores, scale, step * kKeys);
        compute_before_waits(rows.total[0] + rows.total[1], memory.queries);
        wait_for_sums(sums);
        release(memory.values_empty[slot_before]);
        PRIMUS_UNROLL
        for (int i = 0; i < Sums::kCount; ++i) sums.at[i] *= rows.shrink[i / 2 % 2];
        PRIMUS_UNROLL
        for (int d = 0; d < kKeys / 16; ++d) weights[d] = to_left(scores, d);
      }
      const int last = tile.steps - 1;
      memory.values_full[last % kStages].wait(last / kStages % 2);
      settle(sums);
      PRIMUS_UNROLL
      for (LeftInRegisters& left : weights) settle(left);
      begin_products();
      multiply_values(memory, sums, weights, last % kStages);
      end_group_of_products();
      wait_for_sums(sums);
    }
    finish(sums, rows, tile, first_row);
  }

  PRIMUS_DEVICE static void release(Gate& gate) {
    if (lane() == 0) gate.arrive();
  }

  PRIMUS_DEVICE static void multiply_keys(const Memory& memory, Scores& scores, int me, int slot) {
    PRIMUS_UNROLL
    for (int i = 0; i < kHeadDim; i += kPanelLine) {
      const BFloat16* const left = memory.queries + i * kRows + me * kGroupRows * kPanelLine;
      PRIMUS_UNROLL
      for (int d = 0; d < kPanelLine / 16; ++d) {
        multiply<false, false>(scores, at_depth<false>(left, d),
                               at_depth<false>(memory.keys[slot] + i * kKeys, d), i + d > 0);
      }
    }
  }
  PRIMUS_DEVICE static void multiply_values(const Memory& memory, Sums& sums,
                                            const LeftInRegisters (&weights)[kKeys / 16], int slot) {
    constexpr int kDepths = kPanelLine / 16;
    PRIMUS_UNROLL
    for (int d = 0; d < kKeys / 16; ++d) {
      const BFloat16* const panels = memory.values[slot] + d / kDepths * kPanelLine * kValueDim;
      multiply<true>(sums, weights[d], at_depth<true>(panels, d % kDepths));
    }
  }

  PRIMUS_DEVICE void finish(const Sums& sums, const Rows& rows, const Tile& tile, int first_row) const {
    const float sink = sinks ? to_float(sinks[tile.head]) * kLog2E : -infinity();
    const std::int64_t stride = std::int64_t{heads} * kValueDim, tokens = batch * visibility.seq_q;
    PRIMUS_UNROLL
    for (int s = 0; s < kSlots; ++s) {
      const typename Rows::Joined joined = rows.joined(s, sink, sinks != nullptr);
      const std::int64_t i = first_row + Scores::row(2 * s), token = tile.sequence * visibility.seq_q + i;
      const bool there = i < visibility.seq_q;
      if (lse && there && lane() % 4 == 0) {
        lse[tile.head * tokens + token] = joined.log_sum();
      }
      // Each of four lanes has a word of two columns. After the exchange, one lane has all eight columns.
      PRIMUS_UNROLL
      for (int j = 2 * s; j < Sums::kCount; j += 16) {
        std::uint32_t words[4];
        PRIMUS_UNROLL
        for (int w = 0; w < 4; ++w) {
          const Pack<BFloat16, 2> pair{from_float<BFloat16>(sums.at[j + 4 * w] * joined.share),
                                       from_float<BFloat16>(sums.at[j + 4 * w + 1] * joined.share)};
          words[w] = std::bit_cast<std::uint32_t>(pair);
        }
        transpose_among_four(words);
        if (!there) continue;
        BFloat16* const to = out + token * stride + tile.head * kValueDim + j / 16 * 32 + lane() % 4 * 8;
        *reinterpret_cast<Pack<std::uint32_t, 4>*>(to) = {words[0], words[1], words[2], words[3]};
      }
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
