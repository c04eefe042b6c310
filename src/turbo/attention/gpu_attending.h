// The products and the softmax of attention in bf16 by warpgroups (turbo/gpu/warpgroup.h). Kernels over a
// sequence (gpu_warpgroups.h) and over pages of a cache (gpu_paged_warpgroups.h) fetch the operands.
//
// A block of kGroups + 1 warpgroups computes one tile of queries. The last warpgroup fetches tiles of keys
// and values, two tiles of each at a time. Each of the first warpgroups computes 64 queries. Two warpgroups
// issue work to the matrix units in turns: one warpgroup multiplies while the other computes weights. Within
// a warpgroup, the scores of one tile of keys and the weighted values of the preceding tile are computed
// concurrently.
//
// The result of a query depends only on where its tiles and runs of keys begin (gpu_runs.h): tiles without
// keys that the query sees do not change the query's sums.
#pragma once

#include "turbo/attention/gpu_attended_rows.h"
#include "turbo/attention/gpu_attending_results.h"
#include "turbo/gpu/box_copy.h"
#include "turbo/gpu/warpgroup_products.h"

namespace primus::turbo::PRIMUS_GPU {

// kListed: whether the fetching thread lists the first and last key of each step in shared memory, and which
// steps begin a run. Otherwise the steps of a tile are consecutive and belong to one run.
template <int kHeadDim, int kValueDim, int kNumGroups, bool kListed>
struct AttendingWarpgroups {
  static constexpr bool kAlone = true;
  static constexpr int kGroups = kNumGroups, kAttending = kGroups * kWarpgroup;
  static constexpr int kThreads = kAttending + kWarpgroup;
  static constexpr int kGroupRows = 64, kRows = kGroups * kGroupRows, kKeys = 128, kStages = 2;
  using Scores = WarpgroupSums<kKeys>;
  using Sums = WarpgroupSums<kValueDim>;
  using Rows = AttendedRows<kKeys>;
  using Results = AttendingResults<kKeys, kValueDim>;
  static constexpr int kSlots = Rows::kSlots;
  using Runs = AttendingRuns<kListed, kValueDim, kSlots>;

  // Queries and keys have one panel per 64 columns of the head. Values have one panel for each block of 64
  // keys by 64 columns.
  struct Memory {
    BFloat16 queries[kRows * kHeadDim];
    BFloat16 keys[kStages][kKeys * kHeadDim];
    BFloat16 values[kStages][kKeys * kValueDim];
    Gate queries_full, keys_full[kStages], keys_empty[kStages], values_full[kStages], values_empty[kStages];
    Gate turn[kGroups];
    int first_keys[kStages], last_keys[kStages];  // with kListed: keys [first, last) of a step
    bool begins_run[kStages];  // with kListed: whether earlier steps belong to earlier runs
    // With kListed: each thread's sums over the earlier runs.
    float merged[kListed ? Sums::kCount : 1][kListed ? kAttending : 1];
  };
  static constexpr std::size_t kSharedBytes = sizeof(Memory) + kPanelAlignment;
  static_assert(kWarp != 32 || kSharedBytes <= 227 * 1024);

  // A tile of queries.
  struct Tile {
    int sequence, head, row;
    int begin, steps;  // the first key, and the number of key tiles
    int rest;          // number of lines of the last values that are valid
    int rows;          // number of queries
  };

  // Initialises the mbarriers, and starts the two roles: attend() and fetch().
  template <class Attend, class Fetch>
  PRIMUS_DEVICE static void start(Memory& memory, const Attend& attend, const Fetch& fetch) {
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
    // With one attending warpgroup, every thread starts with enough registers.
    if (thread() < kAttending) {
      if constexpr (kGroups > 1) acquire_registers<232>();
      attend();
    } else {
      if constexpr (kGroups > 1) release_registers<40>();
      if (thread() == kAttending) fetch();
    }
  }

  // ---- Attention --------------------------------------------------------------------------------

  // seen_of(i) returns the keys that query i of the tile sees, and results() the Results of the tile.
  template <class SeenOf, class ResultsOf>
  PRIMUS_DEVICE static void attend(Memory& memory, const Tile& tile, float scale, const SeenOf& seen_of,
                                   const ResultsOf& results) {
    const int me = thread() / kWarpgroup, first_row = me * kGroupRows;
    Rows rows(seen_of, kListed ? 0 : tile.begin, first_row, smaller(first_row + kGroupRows, tile.rows));
    Scores scores;
    Sums sums;
    sums.clear();
    Runs runs;
    if (tile.steps > 0) {
      LeftInRegisters weights[kKeys / 16];
      memory.queries_full.wait(0);
      memory.keys_full[0].wait(0);
      begin_products();
      multiply_keys(memory, scores, me, 0);
      end_group_of_products();
      wait_for_sums(scores);
      weigh(memory, rows, runs, scores, scale, 0);
      PRIMUS_UNROLL
      for (int d = 0; d < kKeys / 16; ++d) weights[d] = to_left(scores, d);
      for (int step = 1; step < tile.steps; ++step) {
        const int slot = step % kStages, slot_before = (step - 1) % kStages;
        memory.keys_full[slot].wait(step / kStages % 2);
        // Two warpgroups take turns; the first warpgroup begins.
        if constexpr (kGroups > 1) memory.turn[me].wait((step + (me == 0 ? 0 : 1)) % 2);
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
        if constexpr (kGroups > 1) release(memory.turn[1 - me]);
        wait_for_sums<1>(scores);
        const bool begins_run = weigh(memory, rows, runs, scores, scale, step);
        compute_before_waits(rows.total[0] + rows.total[1], memory.queries);
        wait_for_sums(sums);
        release(memory.values_empty[slot_before]);
        if (begins_run) {
          runs.keep(memory, sums);
        } else {
          PRIMUS_UNROLL
          for (int i = 0; i < Sums::kCount; ++i) sums.at[i] *= rows.shrink[i / 2 % 2];
        }
        PRIMUS_UNROLL
        for (int d = 0; d < kKeys / 16; ++d) weights[d] = to_left(scores, d);
      }
      const int last = tile.steps - 1;
      memory.values_full[last % kStages].wait(last / kStages % 2);
      if (tile.rest < kKeys) clear_values(memory.values[last % kStages], tile.rest);
      settle(sums);
      PRIMUS_UNROLL
      for (LeftInRegisters& left : weights) settle(left);
      begin_products();
      multiply_values(memory, sums, weights, last % kStages);
      end_group_of_products();
      wait_for_sums(sums);
    }
    float maximum[kSlots], total[kSlots];
    PRIMUS_UNROLL
    for (int s = 0; s < kSlots; ++s) maximum[s] = rows.maximum[s], total[s] = Rows::of_lanes(rows.total[s]);
    const Results to_tile = results();
    if constexpr (kListed) {
      if (!to_tile.part) runs.close(memory, sums, maximum, total);
    }
    if (kListed && to_tile.part) return to_tile.write_part(sums, maximum, total, first_row, tile.rows);
    to_tile.write(sums, maximum, total, first_row, tile.rows);
  }

  PRIMUS_DEVICE static void release(Gate& gate) {
    if (lane() == 0) gate.arrive();
  }

  // Turns the scores of a step into weights, and releases the keys of the step. Returns whether the step
  // begins a run.
  PRIMUS_DEVICE static bool weigh(Memory& memory, Rows& rows, Runs& runs, Scores& scores, float scale,
                                  int step) {
    const int slot = step % kStages;
    if constexpr (kListed) {
      const int first = memory.first_keys[slot], last = memory.last_keys[slot];
      const bool begins_run = memory.begins_run[slot];
      release(memory.keys_empty[slot]);
      if (begins_run) {
        float total[kSlots];
        PRIMUS_UNROLL
        for (int s = 0; s < kSlots; ++s) total[s] = Rows::of_lanes(rows.total[s]);
        runs.add(rows.maximum, total);
        rows.restart();
      }
      rows.softmax(scores, scale, first, last);
      return begins_run;
    } else {
      release(memory.keys_empty[slot]);
      rows.softmax(scores, scale, step * kKeys);
      return false;
    }
  }

  // Clears the lines from `rest` on. They may have any bits, and the product of their weights, which are 0,
  // and infinity would be NaN.
  PRIMUS_DEVICE static void clear_values(BFloat16* values, int rest) {
    using Piece = Pack<std::uint64_t, 2>;
    constexpr int kPieces = kPanelLine / 8, kPanels = kValueDim / kPanelLine;
    for (int i = thread(); i < kKeys * kPanels * kPieces; i += kAttending) {
      const int line = i / kPieces, panel = line / kPanelLine;
      if (panel / kPanels * kPanelLine + line % kPanelLine >= rest)
        reinterpret_cast<Piece*>(values)[i] = Piece{};
    }
    show_writes();
    barrier_among(1, kAttending);
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
};

}  // namespace primus::turbo::PRIMUS_GPU
