// How the operands of the experts' products come to shared memory (gpu_warpgroups.h): by one warpgroup, step
// by step, several steps ahead of those that multiply. A stage is handed over by two gates: `full` when it
// has come, `empty` when it was used.
#pragma once

#include "turbo/gpu/async_copy.h"
#include "turbo/gpu/box_copy.h"
#include "turbo/grouped_linear/gpu_tile_order.h"
#include "turbo/grouped_linear/gpu_tiles.h"

namespace primus::turbo::PRIMUS_GPU {

// Of tiles of 128 x kTileCols. "By depth": see turbo/gpu/warpgroup.h. Sums of rows (the weight gradient) are
// both by depth.
template <bool kLeftByDepth, bool kRightByDepth, int kTileCols, int kInAll>
struct GroupOperands {
  static constexpr bool kSumsRows = kLeftByDepth;
  static constexpr int kRows = kGroupSide, kCols = kTileCols, kDepth = kPanelLine, kStages = kInAll;
  // Steps whose copies may be on the way while a fetching thread goes on to the next. A stage is given back
  // when the step after it has begun, so that step must be full without waiting for that stage.
  static constexpr int kLater = 2;
  static_assert(kLater + 2 <= kStages);
  static constexpr int kPiece = 8;  // elements in 16 bytes
  static constexpr int kPieces = kPanelLine / kPiece;
  static constexpr int kBoxRows = 64;

  struct Stage {
    BFloat16 left[kRows * kDepth];
    BFloat16 right[kCols * kDepth];
  };
  struct Memory {
    Stage stages[kStages];
    Gate full[kStages], empty[kStages];
  };
  using Order = GroupTileOrder<kSumsRows, kRows, kCols, kDepth>;
  using Tile = typename Order::Tile;

  Order order;
  BoxMap left_map, right_map;  // of operands whose rows are not picked; left: boxes of kBoxRows x 64
  const BFloat16 *a, *b;       // of those whose rows are
  const std::int32_t *a_picks, *b_picks;

  // By one thread; `warps` of those that multiply use each stage.
  PRIMUS_DEVICE void init(Memory& memory, int warps) const {
    for (int i = 0; i < kStages; ++i) {
      memory.full[i].init(picks_any() ? kWarpgroup : 1);
      memory.empty[i].init(warps);
    }
  }
  PRIMUS_DEVICE bool picks_any() const { return a_picks != nullptr || b_picks != nullptr; }

  // All steps of the block, by all threads of a warpgroup: `me` is the thread in it.
  PRIMUS_DEVICE void fetch(Memory& memory, int me) const {
    if (picks_any()) {
      fetch_picked(memory, me);
    } else if (me == 0) {
      fetch_boxes(memory);
    }
  }

  // All operands by the copy engine: one thread does it.
  PRIMUS_DEVICE void fetch_boxes(Memory& memory) const {
    std::uint32_t count = 0;  // steps so far
    for (int nth = 0, tile; (tile = order.tile(nth)) >= 0; ++nth) {
      const Tile where = order.at(tile);
      const int steps = order.steps_of(tile);
      for (int step = 0; step < steps; ++step, ++count) {
        const int slot = static_cast<int>(count % kStages);
        Stage& to = memory.stages[slot];
        Gate& full = memory.full[slot];
        memory.empty[slot].wait(count / kStages % 2 ^ 1);
        full.arrive_and_expect(left_bytes(where) + static_cast<int>(sizeof(to.right)));
        copy_left(to, where, step * kDepth, full);
        copy_right(to, where, step * kDepth, full);
      }
    }
  }

  // Boxes of rows that are there.
  PRIMUS_DEVICE static int left_boxes(const Tile& where) { return where.rows > kBoxRows ? 2 : 1; }
  PRIMUS_DEVICE static int left_bytes(const Tile& where) {
    return left_boxes(where) * kBoxRows * kDepth * static_cast<int>(sizeof(BFloat16));
  }
  PRIMUS_DEVICE void copy_left(Stage& to, const Tile& where, int depth, Gate& full) const {
    for (int i = 0; i < left_boxes(where); ++i) {
      const int row = where.row + i * kBoxRows;
      copy_box(to.left + i * kBoxRows * kDepth, left_map, kLeftByDepth ? row : depth,
               where.first + (kLeftByDepth ? depth : row), 0, full);
    }
  }
  PRIMUS_DEVICE void copy_right(Stage& to, const Tile& where, int depth, Gate& full) const {
    if constexpr (kRightByDepth) {
      PRIMUS_UNROLL
      for (int i = 0; i < kCols; i += kPanelLine) {
        copy_box(to.right + i * kDepth, right_map, where.col + i, depth + (kSumsRows ? where.first : 0),
                 kSumsRows ? 0 : where.expert, full);
      }
    } else {
      copy_box(to.right, right_map, depth, where.col, where.expert, full);
    }
  }

  // Operands with picked rows by copies of 16 bytes, which all threads of the warpgroup share, beside boxes
  // of the other one. A thread tells of a step when its copies have come, kLater steps after it began them.
  PRIMUS_DEVICE void fetch_picked(Memory& memory, int me) const {
    const int piece = me % kPieces, first_line = me / kPieces;
    constexpr int kLines = kWarpgroup / kPieces;  // that the warpgroup's threads copy at once
    std::uint32_t count = 0;
    for (int nth = 0, tile; (tile = order.tile(nth)) >= 0; ++nth) {
      const Tile where = order.at(tile);
      const int steps = order.steps_of(tile);
      const int boxes = (a_picks ? 0 : left_bytes(where)) + (b_picks ? 0 : kCols * kDepth * 2);
      // Of this thread's lines; negative: zeros.
      constexpr int kPicks = (kLeftByDepth ? kDepth : kRows) / kLines;
      std::int32_t left_rows[kPicks], right_rows[kPicks];
      if constexpr (!kSumsRows) {
        PRIMUS_UNROLL
        for (int i = 0; i < kPicks; ++i) {
          const int row = where.row + first_line + i * kLines;
          left_rows[i] = row < where.count ? a_picks[where.first + row] : -1;
        }
      }
      for (int step = 0; step < steps; ++step, ++count) {
        const int slot = static_cast<int>(count % kStages), depth = step * kDepth;
        if constexpr (kSumsRows) {
          PRIMUS_UNROLL
          for (int i = 0; i < kPicks; ++i) {
            const int row = depth + first_line + i * kLines;
            left_rows[i] = a_picks && row < where.count ? a_picks[where.first + row] : -1;
            right_rows[i] = b_picks && row < where.count ? b_picks[where.first + row] : -1;
          }
        }
        Stage& to = memory.stages[slot];
        Gate& full = memory.full[slot];
        memory.empty[slot].wait(count / kStages % 2 ^ 1);
        if (me == 0) {
          if (boxes > 0) full.expect(boxes);
          if (!a_picks) copy_left(to, where, depth, full);
          if (!b_picks) copy_right(to, where, depth, full);
        }
        if constexpr (kSumsRows) {
          if (a_picks) copy_lines<kRows>(to.left, a, order.m, where.row, left_rows, first_line, piece);
          if (b_picks) copy_lines<kCols>(to.right, b, order.n, where.col, right_rows, first_line, piece);
        } else {
          PRIMUS_UNROLL
          for (int i = 0; i < kPicks; ++i) {
            const int across = depth + piece * kPiece;
            const bool valid = left_rows[i] >= 0 && across < order.k;
            copy_async(in_panel(to.left, first_line + i * kLines, piece),
                       valid ? a + static_cast<std::int64_t>(left_rows[i]) * order.k + across : a, valid);
          }
        }
        end_group_of_copies();
        if (count >= kLater) {
          wait_for_copies<kLater>();
          show_writes();
          memory.full[(count - kLater) % kStages].arrive();
        }
      }
    }
    wait_for_copies<0>();
    show_writes();
    for (std::uint32_t i = count < kLater ? 0 : count - kLater; i < count; ++i) {
      memory.full[i % kStages].arrive();
    }
  }

  // Lines of an operand by depth, whose rows in memory are `cols` long; `side` of them from `col` on.
  template <int kSide, int kPicks>
  PRIMUS_DEVICE static void copy_lines(BFloat16* to, const BFloat16* from, int cols, int col,
                                       const std::int32_t (&rows)[kPicks], int first_line, int piece) {
    PRIMUS_UNROLL
    for (int panel = 0; panel < kSide; panel += kPanelLine) {
      const int across = col + panel + piece * kPiece;
      PRIMUS_UNROLL
      for (int i = 0; i < kPicks; ++i) {
        const bool valid = rows[i] >= 0 && across < cols;
        copy_async(in_panel(to + panel * kDepth, first_line + i * (kDepth / kPicks), piece),
                   valid ? from + static_cast<std::int64_t>(rows[i]) * cols + across : from, valid);
      }
    }
  }

  // Lines of a stage from `from` on belong to another expert, or to nobody. By a warpgroup, before it
  // multiplies; `number`: of a barrier.
  PRIMUS_DEVICE static void clear_lines(Stage& stage, int from, int number) {
    constexpr int kPanels = (kRows + kCols) / kPanelLine;
    static_assert(sizeof(Stage) == kPanels * kDepth * kPanelLine * sizeof(BFloat16));
    using Piece = Pack<std::uint64_t, 2>;
    for (int i = thread() % kWarpgroup; i < kPanels * kDepth * kPieces; i += kWarpgroup) {
      const int line = i / kPieces;
      if (line % kDepth >= from) reinterpret_cast<Piece*>(&stage)[i] = Piece{};
    }
    show_writes();
    barrier_among(number, kWarpgroup);
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
