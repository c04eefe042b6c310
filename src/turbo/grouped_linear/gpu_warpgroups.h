// The products of experts in bf16 by warpgroups (turbo/gpu/warpgroup.h):
//
//   C[m, n] (+)= sum over k of A(m, k) · B(n, k), for each expert
//
// A block stays on its multiprocessor and takes one tile of C after the other. Its last warpgroup fetches
// operands (gpu_group_operands.h), in steps of depth 64; the two others multiply.
//
// Sums of rows (the weight gradient) have few steps and much to write. There the two take turns: one
// multiplies a tile of 128 x 192, the other writes the tile before and waits. Steps come in the order of
// tiles, so the next tile's operands are there when the last ones of this tile are used. A gate hands the
// turn on when the last step of a tile has come: nobody may wait for a stage whose phase before is not over.
//
// Elsewhere both multiply one tile of 128 x 256, 64 rows each, which takes the fewest operands.
#pragma once

#include "turbo/gpu/warpgroup_products.h"
#include "turbo/grouped_linear/gpu_group_operands.h"
#include "turbo/grouped_linear/gpu_group_results.h"

namespace primus::turbo::PRIMUS_GPU {

// "By depth": see turbo/gpu/warpgroup.h. Only sums of rows are added to what is there.
template <class C, bool kLeftByDepth, bool kRightByDepth>
struct GroupWarpgroups {
  static constexpr bool kAlone = true;
  static constexpr bool kSumsRows = kLeftByDepth, kTurns = kSumsRows;
  static constexpr int kMultiplying = 2 * kWarpgroup, kThreads = kMultiplying + kWarpgroup;
  // Two sets of 64 x 192 are as many registers as a warpgroup can have.
  using Sums = WarpgroupSums<kTurns ? 192 : 256>;
  static constexpr int kDown = kTurns ? 2 : 1;  // sets of a warpgroup
  using Operands = GroupOperands<kLeftByDepth, kRightByDepth, Sums::kCols, kTurns ? 5 : 4>;
  using Order = typename Operands::Order;
  using Tile = typename Operands::Tile;
  static constexpr int kRows = Operands::kRows, kCols = Operands::kCols, kDepth = Operands::kDepth,
                       kStages = Operands::kStages;

  struct Memory {
    typename Operands::Memory operands;
    Gate turns[2];  // of each warpgroup
  };
  static constexpr std::size_t kSharedBytes = sizeof(Memory) + kPanelAlignment;

  Operands operands;
  C* c;
  bool accumulate;

  PRIMUS_DEVICE void operator()() const {
#if PRIMUS_WARPGROUPS
    Memory& memory = shared_panels<Memory>();
    if (thread() == 0) {
      operands.init(memory.operands, (kTurns ? kWarpgroup : kMultiplying) / kWarp);
      for (Gate& turn : memory.turns) turn.init(kWarpgroup / kWarp);
      show_gates();
    }
    barrier();
    if (thread() < kMultiplying) {
      multiply_tiles(memory);
    } else {
      give_back_registers<40>();
      operands.fetch(memory.operands, thread() - kMultiplying);
    }
#endif
  }

  PRIMUS_DEVICE void multiply_tiles(Memory& memory) const {
    take_registers<232>();
    const Order& order = operands.order;
    const int group = thread() / kWarpgroup;
    std::uint32_t count = 0;  // steps of both warpgroups
    for (int nth = 0, tile; (tile = order.tile(nth)) >= 0; ++nth) {
      const int steps = order.steps_of(tile);
      if (!kTurns || nth % 2 == group) {
        const Tile where = order.at(tile);
        if constexpr (kTurns) memory.turns[group].wait(static_cast<std::uint32_t>(nth / 2 + group + 1) % 2);
        if (steps == 0) pass_turn(memory);
        if (steps > 0 || !accumulate) multiply_tile(memory, where, steps, count);
      }
      count += static_cast<std::uint32_t>(steps);
    }
  }
  PRIMUS_DEVICE static void pass_turn(Memory& memory) {
    if (kTurns && lane() == 0) memory.turns[1 - thread() / kWarpgroup].arrive();
  }

  PRIMUS_DEVICE void multiply_tile(Memory& memory, const Tile& where, int steps, std::uint32_t count) const {
    Sums sums[kDown];
    if (steps == 0) {
      PRIMUS_UNROLL
      for (Sums& one : sums) one.clear();
    } else if (where.rows <= first_row() + (kDown - 1) * Sums::kRows) {
      multiply_steps<kDown - 1, kCols>(memory, where, steps, count, sums);
    } else if (where.cols > 128) {
      multiply_steps<kDown, kCols>(memory, where, steps, count, sums);
    } else if (where.cols > 64) {
      multiply_steps<kDown, 128>(memory, where, steps, count, sums);
    } else {
      multiply_steps<kDown, 64>(memory, where, steps, count, sums);
    }
    PRIMUS_UNROLL
    for (int i = 0; i < kDown; ++i) {
      const GroupResults<C> to = results(where, first_row() + i * Sums::kRows);
      if constexpr (sizeof(C) == 2 && !kSumsRows) {
        to.write_eights(sums[i]);
      } else {
        to.write_fours(sums[i], accumulate);
      }
    }
  }
  // Of the tile, whose sums this warpgroup has.
  PRIMUS_DEVICE static int first_row() { return kTurns ? 0 : thread() / kWarpgroup * Sums::kRows; }
  PRIMUS_DEVICE GroupResults<C> results(const Tile& where, int row) const {
    const int m = operands.order.m, n = operands.order.n;
    const std::int64_t line = kSumsRows ? static_cast<std::int64_t>(where.expert) * m : where.first;
    return {c + (line + where.row + row) * n + where.col, n, where.rows - row, where.cols};
  }

  // The first kUsedDown sets of sums, and of these the first kUsed columns: what lies beyond an expert's last
  // row or column costs nothing.
  template <int kUsedDown, int kUsed>
  PRIMUS_DEVICE void multiply_steps(Memory& memory, const Tile& where, int steps, std::uint32_t count,
                                    Sums (&sums)[kDown]) const {
    for (int step = 0; step < steps; ++step, ++count) {
      const int slot = static_cast<int>(count % kStages);
      typename Operands::Stage& stage = memory.operands.stages[slot];
      memory.operands.full[slot].wait(count / kStages % 2);
      if (step == steps - 1) pass_turn(memory);
      if constexpr (kSumsRows) {
        const int rest = where.count - step * kDepth;
        if (rest < kDepth) Operands::clear_lines(stage, rest, 1 + thread() / kWarpgroup);
      }
      if constexpr (kUsedDown > 0) {
        begin_products();
        PRIMUS_UNROLL
        for (int d = 0; d < kDepth / 16; ++d) {
          PRIMUS_UNROLL
          for (int i = 0; i < kUsedDown; ++i) {
            const BFloat16* const left = stage.left + (first_row() + i * Sums::kRows) * kDepth;
            multiply<kLeftByDepth, kRightByDepth, kUsed>(sums[i], at_depth<kLeftByDepth>(left, d),
                                                         at_depth<kRightByDepth>(stage.right, d),
                                                         step + d > 0);
          }
        }
        end_group_of_products();
      }
      if (step > 0) {
        wait_for_products<1>();
        if (lane() == 0) memory.operands.empty[(count - 1) % kStages].arrive();
      }
    }
    PRIMUS_UNROLL
    for (Sums& one : sums) wait_for_sums(one);
    if (lane() == 0) memory.operands.empty[(count - 1) % kStages].arrive();
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
