// The products of experts in bf16 by warpgroups (turbo/gpu/warpgroup.h), by tiles of 128 x 192 of C:
//
//   C[m, n] (+)= sum over k of A(m, k) · B(n, k), for each expert
//
// A block stays on its multiprocessor and takes one tile after the other. Its last warpgroup fetches
// operands, several steps of depth 64 ahead. The two others take turns: one multiplies a tile, the other
// writes the tile before and waits. Steps come in the order of tiles, so the next tile's operands are there
// when the last ones of this tile are used. A stage of operands is handed over by two gates: `full` when it
// has come, `empty` when it was used. The turn goes on by a third, when the last step of a tile has come:
// nobody may wait for a stage whose phase before is not over.
#pragma once

#include "turbo/gpu/async_copy.h"
#include "turbo/gpu/box_copy.h"
#include "turbo/gpu/warpgroup_products.h"
#include "turbo/grouped_linear/gpu_group_results.h"
#include "turbo/grouped_linear/gpu_tile_order.h"
#include "turbo/grouped_linear/gpu_tiles.h"

namespace primus::turbo::PRIMUS_GPU {

// "By depth": see turbo/gpu/warpgroup.h. Sums of rows (the weight gradient) are both by depth; only
// they are added to what is there.
template <class C, bool kLeftByDepth, bool kRightByDepth>
struct GroupWarpgroups {
  static constexpr bool kAlone = true;
  static constexpr bool kSumsRows = kLeftByDepth;
  static constexpr int kMultiplying = 2 * kWarpgroup, kThreads = kMultiplying + kWarpgroup;
  // Two sets of sums of 64 x 192 are as many registers as a warpgroup can have.
  using Sums = WarpgroupSums<192>;
  static constexpr int kDown = 2, kRows = kDown * Sums::kRows, kCols = Sums::kCols, kDepth = kPanelLine;
  static_assert(kRows == kGroupSide);
  static constexpr int kStages = 5;
  // Steps whose copies may be on the way while a fetching thread goes on to the next. A stage is given back
  // when the step after it has begun, so that step must be full without waiting for that stage.
  static constexpr int kLater = 2;
  static_assert(kLater + 2 <= kStages);
  static constexpr int kPiece = 8;  // elements in 16 bytes
  static constexpr int kPieces = kPanelLine / kPiece;

  struct Stage {
    BFloat16 left[kRows * kDepth];
    BFloat16 right[kCols * kDepth];
  };
  struct Memory {
    Stage stages[kStages];
    Gate full[kStages], empty[kStages];
    Gate turns[2];  // of each warpgroup
  };
  static constexpr std::size_t kSharedBytes = sizeof(Memory) + kPanelAlignment;

  using Order = GroupTileOrder<kSumsRows, kRows, kCols, kDepth>;
  using Tile = typename Order::Tile;

  BoxMap left_map, right_map;  // of operands whose rows are not picked; left: boxes of 64 x 64
  const BFloat16 *a, *b;       // of those whose rows are
  C* c;
  Order order;
  const std::int32_t *a_picks, *b_picks;
  bool accumulate;

  PRIMUS_DEVICE void operator()() const {
#if PRIMUS_WARPGROUPS
    Memory& memory = shared_panels<Memory>();
    if (thread() == 0) {
      for (int i = 0; i < kStages; ++i) {
        memory.full[i].init(picks_any() ? kWarpgroup : 1);
        memory.empty[i].init(kWarpgroup / kWarp);
      }
      for (Gate& turn : memory.turns) turn.init(kWarpgroup / kWarp);
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

  PRIMUS_DEVICE bool picks_any() const { return a_picks != nullptr || b_picks != nullptr; }

  // ---- Operands ---------------------------------------------------------------------------------

  PRIMUS_DEVICE void fetch_tiles(Memory& memory) const {
    give_back_registers<40>();
    if (picks_any()) {
      fetch_picked(memory, thread() - kMultiplying);
    } else if (thread() == kMultiplying) {
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
  PRIMUS_DEVICE static int left_boxes(const Tile& where) { return where.rows > Sums::kRows ? kDown : 1; }
  PRIMUS_DEVICE static int left_bytes(const Tile& where) {
    return left_boxes(where) * Sums::kRows * kDepth * static_cast<int>(sizeof(BFloat16));
  }
  PRIMUS_DEVICE void copy_left(Stage& to, const Tile& where, int depth, Gate& full) const {
    for (int i = 0; i < left_boxes(where); ++i) {
      const int row = where.row + i * Sums::kRows;
      copy_box(to.left + i * Sums::kRows * kDepth, left_map, kLeftByDepth ? row : depth,
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

  // ---- Products ---------------------------------------------------------------------------------

  PRIMUS_DEVICE void multiply_tiles(Memory& memory) const {
    take_registers<232>();
    const int group = thread() / kWarpgroup;
    std::uint32_t count = 0;  // steps of both warpgroups
    for (int nth = 0, tile; (tile = order.tile(nth)) >= 0; ++nth) {
      const int steps = order.steps_of(tile);
      if (nth % 2 == group) {
        const Tile where = order.at(tile);
        memory.turns[group].wait(static_cast<std::uint32_t>(nth / 2 + group + 1) % 2);
        if (steps == 0) pass_turn(memory);
        if (steps > 0 || !accumulate) multiply_tile(memory, where, steps, count);
      }
      count += static_cast<std::uint32_t>(steps);
    }
  }
  PRIMUS_DEVICE static void pass_turn(Memory& memory) {
    if (lane() == 0) memory.turns[1 - thread() / kWarpgroup].arrive();
  }

  PRIMUS_DEVICE void multiply_tile(Memory& memory, const Tile& where, int steps, std::uint32_t count) const {
    Sums sums[kDown];
    if (steps == 0) {
      PRIMUS_UNROLL
      for (Sums& one : sums) one.clear();
    } else if (where.rows <= Sums::kRows) {
      multiply_steps<1, kCols>(memory, where, steps, count, sums);
    } else if (where.cols > 128) {
      multiply_steps<kDown, kCols>(memory, where, steps, count, sums);
    } else if (where.cols > 64) {
      multiply_steps<kDown, 128>(memory, where, steps, count, sums);
    } else {
      multiply_steps<kDown, 64>(memory, where, steps, count, sums);
    }
    const std::int64_t line =
        (kSumsRows ? static_cast<std::int64_t>(where.expert) * order.m : where.first) + where.row;
    PRIMUS_UNROLL
    for (int i = 0; i < kDown; ++i) {
      const GroupResults<C> results{c + (line + i * Sums::kRows) * order.n + where.col, order.n,
                                    where.rows - i * Sums::kRows, where.cols};
      if constexpr (sizeof(C) == 2 && !kSumsRows) {
        results.write_eights(sums[i]);
      } else {
        results.write_fours(sums[i], accumulate);
      }
    }
  }

  // The first kUsedDown sets of sums, and of these the first kUsed columns: what lies beyond an expert's last
  // row or column costs nothing.
  template <int kUsedDown, int kUsed>
  PRIMUS_DEVICE static void multiply_steps(Memory& memory, const Tile& where, int steps, std::uint32_t count,
                                           Sums (&sums)[kDown]) {
    for (int step = 0; step < steps; ++step, ++count) {
      const int slot = static_cast<int>(count % kStages);
      Stage& stage = memory.stages[slot];
      memory.full[slot].wait(count / kStages % 2);
      if (step == steps - 1) pass_turn(memory);
      if constexpr (kSumsRows) {
        const int rest = where.count - step * kDepth;
        if (rest < kDepth) clear_lines(stage, rest);
      }
      begin_products();
      PRIMUS_UNROLL
      for (int d = 0; d < kDepth / 16; ++d) {
        PRIMUS_UNROLL
        for (int i = 0; i < kUsedDown; ++i) {
          const BFloat16* const left = stage.left + i * Sums::kRows * kDepth;
          multiply<kLeftByDepth, kRightByDepth, kUsed>(sums[i], at_depth<kLeftByDepth>(left, d),
                                                       at_depth<kRightByDepth>(stage.right, d), step + d > 0);
        }
      }
      end_group_of_products();
      if (step > 0) {
        wait_for_products<1>();
        if (lane() == 0) memory.empty[(count - 1) % kStages].arrive();
      }
    }
    PRIMUS_UNROLL
    for (Sums& one : sums) wait_for_sums(one);
    if (lane() == 0) memory.empty[(count - 1) % kStages].arrive();
  }

  // Lines from `from` on belong to another expert, or to nobody.
  PRIMUS_DEVICE static void clear_lines(Stage& stage, int from) {
    constexpr int kPanels = (kRows + kCols) / kPanelLine;
    static_assert(sizeof(Stage) == kPanels * kDepth * kPanelLine * sizeof(BFloat16));
    using Piece = Pack<std::uint64_t, 2>;
    for (int i = thread() % kWarpgroup; i < kPanels * kDepth * kPieces; i += kWarpgroup) {
      const int line = i / kPieces;
      if (line % kDepth >= from) reinterpret_cast<Piece*>(&stage)[i] = Piece{};
    }
    show_writes();
    barrier_among(1 + thread() / kWarpgroup, kWarpgroup);
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
