// Grouped GEMM in bf16 by warpgroups (turbo/gpu/warpgroup.h), by tiles of 128 x 256 of C:
//
//   C[m, n] (+)= sum over k of A(m, k) · B(n, k), for each expert
//
// A block processes one tile at a time. The last warpgroup of the block fetches operands several steps of
// depth 64 ahead. Each of the first two warpgroups multiplies 64 rows. A stage of operands has two mbarriers:
// a phase of `full` is complete when the operands have arrived, and a phase of `empty` is complete when both
// multiplying warpgroups have used the operands.
#pragma once

#include "turbo/gpu/warpgroup_products.h"
#include "turbo/grouped_linear/gpu_group_operands.h"

namespace primus::turbo::PRIMUS_GPU {

// turbo/gpu/warpgroup.h defines "by depth". In row sums (the weight gradient), both operands are stored by
// depth. Only row sums support `accumulate`.
template <class C, bool kLeftByDepth, bool kRightByDepth>
struct GroupWarpgroups : GroupOperands<C, kLeftByDepth, kRightByDepth> {
  using Base = GroupOperands<C, kLeftByDepth, kRightByDepth>;
  using Base::at, Base::tiles, Base::steps_of, Base::picks_any, Base::fetch_tiles;
  using Base::c, Base::m, Base::n, Base::accumulate, Base::result_map;
  using typename Base::Memory, typename Base::Stage, typename Base::Tile;
  static constexpr bool kSumsRows = Base::kSumsRows, kBoxes = Base::kBoxes, kPatches = Base::kPatches;
  static constexpr int kMultiplying = Base::kMultiplying, kRows = Base::kRows, kCols = Base::kCols,
                       kDepth = Base::kDepth, kStages = Base::kStages, kPieces = Base::kPieces;

  PRIMUS_DEVICE void operator()() const {
#if PRIMUS_WARPGROUPS
    if (kSumsRows && accumulate && this->offsets[this->experts] == 0) return;  // no expert adds anything
    Memory& memory = shared_panels<Memory>();
    if (thread() == 0) {
      for (int i = 0; i < kStages; ++i) {
        memory.full[i].init(picks_any() ? kWarpgroup : 1);
        memory.empty[i].init(kMultiplying / kWarp);
      }
      show_gates();
    }
    barrier();
    if (thread() < kMultiplying) {
      multiply_tiles(memory);
    } else {
      fetch_tiles(memory);
    }
#endif
  }

  PRIMUS_DEVICE void multiply_tiles(Memory& memory) const {
    acquire_registers<224>();
    const int group = thread() / kWarpgroup;
    const int all = tiles(), stride = static_cast<int>(blocks());
    int tile = static_cast<int>(block());
    if (tile >= all) return;
    Tile where = at(tile);
    for (std::uint32_t count = 0; tile < all; tile += stride) {
      const int steps = steps_of(where);
      WideSums sums;
      if (steps == 0) sums.clear();
      for (int step = 0; step < steps; ++step, ++count) {
        const int slot = static_cast<int>(count % kStages);
        Stage& stage = memory.stages[slot];
        memory.full[slot].wait(count / kStages % 2);
        if (picks_any()) show_writes();
        if constexpr (kSumsRows) {
          const int rest = where.count - step * kDepth;
          if (rest < kDepth) clear_lines(stage, rest);
        }
        begin_products();
        PRIMUS_UNROLL
        for (int d = 0; d < kDepth / 16; ++d) {
          const BFloat16* const left = stage.left + group * WideSums::kRows * kDepth;
          multiply<kLeftByDepth, kRightByDepth>(sums, at_depth<kLeftByDepth>(left, d),
                                                at_depth<kRightByDepth>(stage.right, d), step + d > 0);
        }
        end_group_of_products();
        if (step > 0) {
          wait_for_products<1>();
          if (lane() == 0) memory.empty[(count - 1) % kStages].arrive();
        }
      }
      wait_for_sums(sums);
      if (steps > 0 && lane() == 0) memory.empty[(count - 1) % kStages].arrive();
      if (steps > 0 || !accumulate) write(memory, sums, where, group * WideSums::kRows);  // else adds nothing
      if (tile + stride < all) where = at(tile + stride);  // overlaps with the writes
    }
    if constexpr (kBoxes) {
      if (lane() == 0) wait_for_boxes();  // the block must not end while boxes read its shared memory
    }
  }

  // Clears the lines from `from` on, because these lines belong to other experts. The two multiplying
  // warpgroups share this work.
  PRIMUS_DEVICE static void clear_lines(Stage& stage, int from) {
    constexpr int kPanels = (kRows + kCols) / kPanelLine;
    static_assert(sizeof(Stage) == kPanels * kDepth * kPanelLine * sizeof(BFloat16));
    using Piece = Pack<std::uint64_t, 2>;
    for (int i = thread(); i < kPanels * kDepth * kPieces; i += kMultiplying) {
      const int line = i / kPieces;
      if (line % kDepth >= from) reinterpret_cast<Piece*>(&stage)[i] = Piece{};
    }
    show_writes();
    barrier_among(1, kMultiplying);
  }

  PRIMUS_DEVICE void write(Memory& memory, const WideSums& sums, const Tile& where, int first_row) const {
    const int row = where.row + first_row + warp() % 4 * 16;
    if constexpr (kBoxes) {
      memory.ways_out[warp()].write(sums, result_map, row, where.col, where.expert, accumulate);
    } else {
      const std::int64_t begin = (kSumsRows ? static_cast<std::int64_t>(where.expert) * m : where.first);
      const GroupResults<C> results{c + (begin + row) * n + where.col, n, (kSumsRows ? m : where.count) - row,
                                    n - where.col, accumulate};
      if constexpr (kPatches) {
        results.write_patches(memory.ways_out[warp()], sums);
      } else {
        results.write_eights(sums);
      }
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
