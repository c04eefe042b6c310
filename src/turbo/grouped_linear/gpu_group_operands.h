// Operands of a grouped GEMM by warpgroups (gpu_warpgroups.h): the shared memory, the tiles of C of a block,
// and the fetches of operands by the last warpgroup of a block.
#pragma once

#include "turbo/gpu/async_copy.h"
#include "turbo/gpu/box_copy.h"
#include "turbo/grouped_linear/gpu_group_results.h"
#include "turbo/grouped_linear/gpu_tiles.h"

namespace primus::turbo::PRIMUS_GPU {

// turbo/gpu/warpgroup.h defines "by depth". In row sums (the weight gradient), both operands are stored by
// depth. Only row sums can accumulate.
template <class C, bool kLeftByDepth, bool kRightByDepth>
struct GroupOperands {
  static constexpr bool kAlone = true;
  static constexpr bool kSumsRows = kLeftByDepth;
  // Weight gradients in bf16 are written as boxes (GroupBoxes), and all fp32 results as patches (GroupPatch).
  static constexpr bool kBoxes = kSumsRows && sizeof(C) == 2, kPatches = sizeof(C) == 4;
  static constexpr int kMultiplying = 2 * kWarpgroup, kThreads = kMultiplying + kWarpgroup;
  static constexpr int kRows = kGroupSide, kCols = WideSums::kCols, kDepth = kPanelLine, kStages = 4;
  static constexpr int kPiece = 8;  // elements in 16 bytes
  static constexpr int kPieces = kPanelLine / kPiece, kLineBytes = 128;

  struct Stage {
    BFloat16 left[kRows * kDepth];
    BFloat16 right[kCols * kDepth];
  };
  struct Memory {
    Stage stages[kStages];
    std::conditional_t<kBoxes, GroupBoxes, GroupPatch>
        ways_out[kBoxes || kPatches ? kMultiplying / kWarp : 1];
    Gate full[kStages], empty[kStages];
  };
  static constexpr std::size_t kSharedBytes = sizeof(Memory) + kPanelAlignment;
  static_assert(kSharedBytes <= 227 * 1024);

  BoxMap left_map, right_map;  // for operands whose rows are not picked
  BoxMap result_map;           // for kBoxes
  BoxMap prefetched_map;       // C in words of 16 bits, for row sums
  const BFloat16 *a, *b;       // for operands with picked rows
  C* c;
  int m, n, k;  // `offsets` replaces m (or k when rows are summed)
  int experts;
  const std::int32_t *offsets, *first_tiles;  // null: one matrix multiplies all m rows (not for row sums)
  const std::int32_t *a_picks, *b_picks;
  bool accumulate;

  PRIMUS_DEVICE bool picks_any() const { return a_picks != nullptr || b_picks != nullptr; }

  // ---- Tiles ------------------------------------------------------------------------------------

  struct Tile {
    int expert, first, count;  // the expert's rows of activations
    int row, col;              // of C
  };

  PRIMUS_DEVICE int col_tiles() const { return (n + kCols - 1) / kCols; }
  PRIMUS_DEVICE int row_tiles() const { return (m + kRows - 1) / kRows; }  // when rows are summed
  // Returns the number of row tiles of the experts before `expert`.
  PRIMUS_DEVICE int row_tiles_before(int expert) const {
    if (!first_tiles) return expert * row_tiles();  // there is only expert 0
    return first_tiles[expert];
  }
  PRIMUS_DEVICE int tiles() const {
    return (kSumsRows ? experts * row_tiles() : row_tiles_before(experts)) * col_tiles();
  }
  PRIMUS_DEVICE int expert_of(int tile) const {
    if constexpr (kSumsRows) return tile / (row_tiles() * col_tiles());
    if (!first_tiles) return 0;
    return owner_of(first_tiles, experts, tile / col_tiles());
  }
  PRIMUS_DEVICE Tile at(int tile) const {
    Tile result;
    result.expert = expert_of(tile);
    const int before = kSumsRows ? result.expert * row_tiles() : row_tiles_before(result.expert);
    const int rows = kSumsRows ? row_tiles() : row_tiles_before(result.expert + 1) - before;
    tile -= before * col_tiles();
    // Concurrent blocks share rows and columns: eight columns of tiles, row by row.
    constexpr int kTogether = 8;
    const int band = tile / (rows * kTogether), in_band = tile % (rows * kTogether);
    const int left = col_tiles() - band * kTogether, width = left < kTogether ? left : kTogether;
    result.row = in_band / width * kRows;
    result.col = (band * kTogether + in_band % width) * kCols;
    result.first = offsets ? offsets[result.expert] : 0;
    result.count = offsets ? offsets[result.expert + 1] - result.first : m;
    return result;
  }
  PRIMUS_DEVICE int steps_of(const Tile& tile) const {
    return ((kSumsRows ? tile.count : k) + kDepth - 1) / kDepth;
  }

  // ---- Operands ---------------------------------------------------------------------------------

  PRIMUS_DEVICE void fetch_tiles(Memory& memory) const {
    release_registers<56>();
    if (picks_any()) {
      fetch_picked(memory, thread() - kMultiplying);
    } else if (thread() == kMultiplying) {
      fetch_boxes(memory);
    }
  }

  // Fetches both operands by the TMA, from one thread.
  PRIMUS_DEVICE void fetch_boxes(Memory& memory) const {
    const int all = tiles();
    std::uint32_t count = 0;  // running number of steps, over all tiles
    for (int tile = static_cast<int>(block()); tile < all; tile += static_cast<int>(blocks())) {
      const Tile where = at(tile);
      const int steps = steps_of(where);
      for (int step = 0; step < steps; ++step, ++count) {
        const int slot = static_cast<int>(count % kStages);
        Gate& full = memory.full[slot];
        memory.empty[slot].wait(count / kStages % 2 ^ 1);
        full.arrive_and_expect(sizeof(Stage));
        if constexpr (kSumsRows) prefetch_results(where, step, steps);
        copy_left(memory.stages[slot], where, step * kDepth, full);
        copy_right(memory.stages[slot], where, step * kDepth, full);
      }
    }
  }

  // Prefetches the tile's part of C shortly before the addition. The prefetch reads complete lines from
  // memory; the additions would read parts of lines.
  PRIMUS_DEVICE void prefetch_results(const Tile& where, int step, int steps) const {
    constexpr int kWords = static_cast<int>(sizeof(C) / sizeof(BFloat16));
    if (!accumulate || step + 1 < steps) return;
    for (int i = 0; i < kCols * kWords; i += kPanelLine)
      prefetch_box(prefetched_map, where.col * kWords + i, where.row, where.expert);
  }

  PRIMUS_DEVICE void copy_left(Stage& to, const Tile& where, int depth, Gate& full) const {
    if constexpr (kLeftByDepth) {
      PRIMUS_UNROLL
      for (int i = 0; i < kRows; i += kPanelLine) {
        copy_box(to.left + i * kDepth, left_map, where.row + i, where.first + depth, 0, full);
      }
    } else {
      copy_box(to.left, left_map, depth, where.first + where.row, 0, full);
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

  // Fetches operands with picked rows by copies of 16 bytes. All threads of the warpgroup share this work.
  // The TMA fetches the other operand at the same time.
  PRIMUS_DEVICE void fetch_picked(Memory& memory, int me) const {
    const int all = tiles();
    const int boxes = (a_picks ? 0 : kRows * kDepth * 2) + (b_picks ? 0 : kCols * kDepth * 2);
    const int piece = me % kPieces, first_line = me / kPieces;
    constexpr int kLines = kWarpgroup / kPieces;  // lines that the warpgroup copies at once
    std::uint32_t count = 0;
    for (int tile = static_cast<int>(block()); tile < all; tile += static_cast<int>(blocks())) {
      const Tile where = at(tile);
      const int steps = steps_of(where);
      // Row indices of this thread's lines. Rows outside the expert may have any index: their products are
      // not used.
      constexpr int kPicks = (kLeftByDepth ? kDepth : kRows) / kLines;
      std::int32_t left_rows[kPicks], right_rows[kPicks];
      const auto pick = [&](int from) {
        PRIMUS_UNROLL
        for (int i = 0; i < kPicks; ++i) {
          const int row = from + first_line + i * kLines;
          left_rows[i] = a_picks && row < where.count ? a_picks[where.first + row] : 0;
          right_rows[i] = b_picks && row < where.count ? b_picks[where.first + row] : 0;
        }
      };
      pick(kSumsRows ? 0 : where.row);
      for (int step = 0; step < steps; ++step, ++count) {
        const int slot = static_cast<int>(count % kStages), depth = step * kDepth;
        Stage& to = memory.stages[slot];
        Gate& full = memory.full[slot];
        memory.empty[slot].wait(count / kStages % 2 ^ 1);
        if (me == 0) {
          if (boxes > 0) full.expect(boxes);
          if (!a_picks) copy_left(to, where, depth, full);
          if (!b_picks) copy_right(to, where, depth, full);
          if constexpr (kSumsRows) prefetch_results(where, step, steps);
        }
        if constexpr (kSumsRows) {
          if (a_picks) copy_lines<kRows>(to.left, a, m, where.row, left_rows, first_line, piece);
          if (b_picks) copy_lines<kCols>(to.right, b, n, where.col, right_rows, first_line, piece);
        } else {
          const int across = depth + piece * kPiece;
          const SharedAddress first = shared_address(in_panel(to.left, first_line, piece));
          PRIMUS_UNROLL
          for (int i = 0; i < kPicks; ++i) {
            copy_async(first + i * kLines * kLineBytes,
                       a + across + static_cast<std::int64_t>(left_rows[i]) * k, across < k);
          }
        }
        full.arrive_after_copies();
        if constexpr (kSumsRows)
          pick(depth + kDepth);  // indices for the next step, while this step's copies are in flight
      }
    }
    end_group_of_copies();
    wait_for_copies<0>();
  }

  // Copies kSide consecutive elements of each selected row, beginning at column `col`. A row of the matrix
  // has `cols` elements.
  template <int kSide, int kPicks>
  PRIMUS_DEVICE static void copy_lines(BFloat16* to, const BFloat16* from, int cols, int col,
                                       const std::int32_t (&rows)[kPicks], int first_line, int piece) {
    // The swizzle repeats every eight lines, so it is the same for all lines of a thread.
    const SharedAddress first = shared_address(in_panel(to, first_line, piece));
    const int across = col + piece * kPiece;
    PRIMUS_UNROLL
    for (int i = 0; i < kPicks; ++i) {
      const BFloat16* const row = from + across + static_cast<std::int64_t>(rows[i]) * cols;
      PRIMUS_UNROLL
      for (int panel = 0; panel < kSide; panel += kPanelLine) {
        const int line = panel / kPanelLine * kDepth + i * (kDepth / kPicks);
        copy_async(first + line * kLineBytes, row + panel, across + panel < cols);
      }
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
