// Grouped GEMM in bf16 in tiles of 128 x 128. The kernel fetches the operands of several steps ahead.
// grouped_linear/gpu.cu uses this kernel if rows are multiples of 16 bytes.
//
//   C[m, n] (+)= sum over k of A(m, k) · B(n, k), for each expert
//
// Only the device has the number of rows of each expert. Therefore the host starts enough blocks for any
// distribution of rows over experts: rows / 128 blocks, and one more block per expert for the expert's last,
// shorter tile.
#pragma once

#include "turbo/gpu/async_copy.h"
#include "turbo/gpu/mma.h"
#include "turbo/gpu/numbering.h"
#include "turbo/gpu/search.h"

namespace primus::turbo::PRIMUS_GPU {

inline constexpr int kGroupSide = 128;

// Sets first_tiles[e] to the number of row tiles of the experts before e, for e <= experts. Runs in one
// block.
struct CountRowTiles {
  static constexpr int kThreads = 256;
  using StartsEarly = void;
  const std::int32_t* offsets;
  std::int32_t* first_tiles;
  std::int64_t experts;

  PRIMUS_DEVICE void operator()() const {
    Numbering<kThreads>& numbering = shared<Numbering<kThreads>>();
    let_next_begin();
    wait_for_previous();
    std::int32_t next = 0;
    for (std::int64_t begin = 0; begin <= experts; begin += kThreads) {
      const std::int64_t e = begin + thread();
      const std::int32_t tiles =
          e < experts ? (offsets[e + 1] - offsets[e] + kGroupSide - 1) / kGroupSide : 0;
      const std::int32_t first = numbering(tiles, next);
      if (e <= experts) first_tiles[e] = first;
    }
  }
};

// The depth of a product is k. An operand is stored "by depth" if adjacent elements in memory have
// consecutive m (or n) and the same k.
template <class C, bool kLeftByDepth, bool kRightByDepth>
struct GroupTiles {
  static constexpr int kThreads = 256;
  static constexpr int kSide = kGroupSide, kDepth = 32;
  // One step of both operands needs 20 KiB: two steps fit into the 64 KiB of shared memory of an AMD GPU.
  static constexpr int kStages = kWarp == 32 ? 4 : 2;
  static constexpr int kWarpsDown = 2, kWarpsAcross = kThreads / kWarp / kWarpsDown;
  static constexpr int kDown = kSide / kWarpsDown / kTile, kAcross = kSide / kWarpsAcross / kTile;
  static constexpr int kLine = 8;  // elements in 16 bytes

  // Padding of 8 elements puts eight adjacent rows into different banks.
  template <bool kByDepth>
  struct Operands {
    static constexpr int kStep = (kByDepth ? kSide : kDepth) + kLine;
    BFloat16 at[(kByDepth ? kDepth : kSide) * kStep];
  };
  struct Stage {
    Operands<kLeftByDepth> left;
    Operands<kRightByDepth> right;
  };
  static constexpr std::size_t kSharedBytes = sizeof(Stage) * kStages;

  const BFloat16 *a, *b;
  C* c;
  // m (or k if rows are summed) is not used, because the number of rows depends on the expert (offsets).
  std::int64_t m, n, k;
  std::int64_t left_step, right_step;  // elements between the starts of consecutive rows in memory
  // b_expert, c_expert: elements between the matrices of consecutive experts.
  std::int64_t experts, b_expert, c_expert;
  const std::int32_t *offsets, *first_tiles;
  const std::int32_t *a_picks, *b_picks;
  bool accumulate;

  static constexpr bool kSumsRows = kLeftByDepth;  // true for the weight gradient

  // The part of an operand that one thread copies, two lines per step.
  template <bool kByDepth>
  struct Source {
    static constexpr int kLines = kSide * kDepth / kLine / kThreads;
    static constexpr int kLinesAcross = (kByDepth ? kSide : kDepth) / kLine;
    const BFloat16* from;  // first element of the tile
    std::int64_t step, depths;
    const std::int32_t* picks;                    // row in memory of each index of depth; null: the same
    const BFloat16* rows[kByDepth ? 1 : kLines];  // rows of this thread's lines; null: the line is zero

    // `first` is the first row of the tile, and `bound` is the end of the rows. `index` has the position of
    // each row in memory, or is null.
    PRIMUS_DEVICE Source(const BFloat16* x, std::int64_t row_step, std::int64_t first, std::int64_t bound,
                         std::int64_t depth, const std::int32_t* index)
        : from(kByDepth ? x + first : x), step(row_step), depths(depth), picks(index) {
      if constexpr (kByDepth) {
        rows[0] = first + thread() % kLinesAcross * kLine < bound ? x : nullptr;
      } else {
        PRIMUS_UNROLL
        for (int i = 0; i < kLines; ++i) {
          const std::int64_t row = first + (thread() + i * kThreads) / kLinesAcross;
          rows[i] = row < bound ? x + (index ? index[row] : row) * row_step : nullptr;
        }
      }
    }
    PRIMUS_DEVICE void fill(Operands<kByDepth>& to, std::int64_t depth) const {
      PRIMUS_UNROLL
      for (int i = 0; i < kLines; ++i) {
        const int line = thread() + i * kThreads;
        const int down = line / kLinesAcross, across = line % kLinesAcross * kLine;
        const BFloat16* at = from;
        bool valid;
        if constexpr (kByDepth) {
          valid = rows[0] && depth + down < depths;
          if (valid) at = from + (picks ? picks[depth + down] : depth + down) * step + across;
        } else {
          valid = rows[i] && depth + across < depths;
          if (valid) at = rows[i] + depth + across;
        }
        copy_async(&to.at[down * Operands<kByDepth>::kStep + across], at, valid);
      }
    }
  };

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t col_tiles = (n + kSide - 1) / kSide;
    std::int64_t expert, row_tiles, tile;
    if constexpr (kSumsRows) {
      row_tiles = (m + kSide - 1) / kSide;
      expert = block() / (row_tiles * col_tiles);
      tile = block() % (row_tiles * col_tiles);
    } else {
      const std::int64_t row_tile = block() / col_tiles;
      if (row_tile >= first_tiles[experts]) return;
      expert = owner_of(first_tiles, experts, row_tile);
      row_tiles = first_tiles[expert + 1] - first_tiles[expert];
      tile = block() - first_tiles[expert] * col_tiles;
    }
    // Blocks process eight columns of tiles, row by row, so that concurrent blocks read the same rows and
    // columns.
    constexpr std::int64_t kTogether = 8;
    const std::int64_t band = tile / (row_tiles * kTogether), in_band = tile % (row_tiles * kTogether);
    const std::int64_t width = smaller(kTogether, col_tiles - band * kTogether);
    const std::int64_t row = in_band / width * kSide, col = (band * kTogether + in_band % width) * kSide;

    const std::int64_t first = offsets[expert], count = offsets[expert + 1] - first;
    if (kSumsRows && accumulate && count == 0) return;  // an expert without rows adds nothing
    const std::int64_t rows = kSumsRows ? m : count, depths = kSumsRows ? count : k;
    const std::int32_t* const left_picks = a_picks ? a_picks + first : nullptr;
    const std::int32_t* const right_picks = b_picks ? b_picks + first : nullptr;
    const Source<kLeftByDepth> left(left_picks ? a : a + first * left_step, left_step, row, rows, depths,
                                    left_picks);
    const BFloat16* const weights = b + expert * b_expert;
    const Source<kRightByDepth> right(!kSumsRows || right_picks ? weights : b + first * right_step,
                                      right_step, col, n, depths, right_picks);

    Stage* const stages = reinterpret_cast<Stage*>(dynamic_shared());
    const std::int64_t steps = (depths + kDepth - 1) / kDepth;
    const auto fetch = [&](std::int64_t step) {
      if (step < steps) {
        Stage& stage = stages[step % kStages];
        left.fill(stage.left, step * kDepth);
        right.fill(stage.right, step * kDepth);
      }
      end_group_of_copies();
    };
    for (int step = 0; step < kStages - 1; ++step) fetch(step);
    Accumulator sums[kDown][kAcross];
    PRIMUS_UNROLL
    for (int i = 0; i < kDown; ++i) {
      PRIMUS_UNROLL
      for (int j = 0; j < kAcross; ++j) sums[i][j].clear();
    }
    const int down = warp() % kWarpsDown * kDown * kTile, across = warp() / kWarpsDown * kAcross * kTile;
    for (std::int64_t step = 0; step < steps; ++step) {
      wait_for_copies<kStages - 2>();
      barrier();  // the operands of this step have arrived, and all threads have read the previous step's
                  // step
      fetch(step + kStages - 1);
      const Stage& stage = stages[step % kStages];
      PRIMUS_UNROLL
      for (int d = 0; d < kDepth; d += kTile) {
        Operand<BFloat16> x[kDown];
        PRIMUS_UNROLL
        for (int i = 0; i < kDown; ++i) x[i] = operand<true>(stage.left, down + i * kTile, d);
        PRIMUS_UNROLL
        for (int j = 0; j < kAcross; ++j) {
          const Operand<BFloat16> y = operand<false>(stage.right, across + j * kTile, d);
          PRIMUS_UNROLL
          for (int i = 0; i < kDown; ++i) multiply(sums[i][j], x[i], y);
        }
      }
    }
    wait_for_copies<0>();
    C* const to = c + (kSumsRows ? expert * c_expert : first * n);
    PRIMUS_UNROLL
    for (int i = 0; i < kDown; ++i) {
      PRIMUS_UNROLL
      for (int j = 0; j < kAcross; ++j) {
        write(to, sums[i][j], row + down + i * kTile, col + across + j * kTile, rows);
      }
    }
  }

  template <bool kLeft, bool kByDepth>
  PRIMUS_DEVICE static Operand<BFloat16> operand(const Operands<kByDepth>& in, int row, int depth) {
    constexpr int kStep = Operands<kByDepth>::kStep;
    const BFloat16* const tile = kByDepth ? in.at + depth * kStep + row : in.at + row * kStep + depth;
    if constexpr (kLeft) {
      return load_left<kByDepth>(tile, kStep);
    } else {
      return load_right<kByDepth>(tile, kStep);
    }
  }

  PRIMUS_DEVICE void write(C* to, const Accumulator& sums, std::int64_t row, std::int64_t col,
                           std::int64_t rows) const {
    // With warps of 32, a lane holds pairs of adjacent sums, and stores a pair at once.
    constexpr int kPair = kWarp == 32 ? 2 : 1;
    PRIMUS_UNROLL
    for (int i = 0; i < kPerLane; i += kPair) {
      const std::int64_t r = row + Accumulator::row(i), s = col + Accumulator::col(i);
      if (r >= rows || s >= n) continue;
      C* const out = to + r * n + s;
      float values[kPair];
      PRIMUS_UNROLL
      for (int j = 0; j < kPair; ++j) values[j] = (accumulate ? to_float(out[j]) : 0.0F) + sums.at[i + j];
      store(out, values);
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
