// Writes a warp's sums of an expert's product (gpu_warpgroups.h) from registers to C.
#pragma once

#include "turbo/gpu/box_copy.h"
#include "turbo/gpu/warpgroup_products.h"
#include "turbo/gpu/warpgroup_results.h"

namespace primus::turbo::PRIMUS_GPU {

// A buffer in shared memory for some of a warp's sums on their way to C. 32 bytes of padding per row avoid
// bank conflicts.
struct alignas(32) GroupPatch {
  static constexpr int kRows = 8, kCols = 128, kStep = kCols + 8;
  float at[(kRows - 1) * kStep + kCols];
  PRIMUS_DEVICE float* line(int row) { return at + row * kStep; }
};

// The warp's 16 rows of C in global memory.
template <class C>
struct GroupResults {
  C* to;
  std::int64_t step;  // elements between the starts of consecutive rows
  int rows, cols;     // number of valid rows and columns; other sums are not written
  bool accumulate;

  // Each of four lanes has a word of two adjacent elements. After the transposition, one lane has all eight
  // adjacent elements.
  PRIMUS_DEVICE void write_eights(const WideSums& sums) const {
    PRIMUS_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = lane() / 4 + 8 * half;
      C* const line = to + static_cast<std::int64_t>(row) * step;
      PRIMUS_UNROLL
      for (int i = 2 * half; i < WideSums::kCount; i += 16) {
        std::uint32_t words[4];
        PRIMUS_UNROLL
        for (int j = 0; j < 4; ++j) {
          const Pack<C, 2> pair{from_float<C>(sums.at[i + 4 * j]), from_float<C>(sums.at[i + 4 * j + 1])};
          words[j] = std::bit_cast<std::uint32_t>(pair);
        }
        transpose_among_four(words);
        const int col = i / 16 * 32 + lane() % 4 * 8;
        if (row >= rows || col >= cols) continue;
        *reinterpret_cast<Pack<std::uint32_t, 4>*>(line + col) = {words[0], words[1], words[2], words[3]};
      }
    }
  }

  // Writes fp32 sums through shared memory. A warp then writes long segments of rows, because writing short
  // segments is slow.
  PRIMUS_DEVICE void write_patches(GroupPatch& patch, const WideSums& sums) const {
    constexpr int kAcross = WideSums::kCols / GroupPatch::kCols, kPatches = 2 * kAcross;
    PRIMUS_UNROLL
    for (int i = 0; i < kPatches; ++i) {
      const int half = i / kAcross, first_col = i % kAcross * GroupPatch::kCols;
      warp_barrier();  // all lanes have read the previous patch
      PRIMUS_UNROLL
      for (int j = 0; j < GroupPatch::kCols / 8; ++j) {
        const int at = first_col / 2 + 4 * j + 2 * half;
        const float pair[2] = {sums.at[at], sums.at[at + 1]};
        store(patch.line(lane() / 4) + 8 * j + lane() % 4 * 2, pair);
      }
      warp_barrier();
      C* const corner = to + static_cast<std::int64_t>(8 * half) * step + first_col;
      PRIMUS_UNROLL
      for (int row = 0; row < GroupPatch::kRows; ++row) {
        float four[4];
        load(patch.line(row) + 4 * lane(), four);
        if (8 * half + row >= rows || first_col + 4 * lane() >= cols) continue;
        C* const line = corner + static_cast<std::int64_t>(row) * step + 4 * lane();
        if (accumulate) {
          add_four(line, four);
        } else {
          store(line, four);
        }
      }
    }
  }
};

// Two boxes of a warp's bf16 sums. The TMA writes them to C, or adds them to C, while the warp computes its
// next products.
struct GroupBoxes {
  static constexpr int kRows = 16;  // rows of a box of kPanelLine columns
  BFloat16 panels[2][kRows * kPanelLine];

  // Writes the sums to C, beginning at (row, col) of an expert's matrix. `map` has boxes of kRows rows.
  PRIMUS_DEVICE void write(const WideSums& sums, const BoxMap& map, int row, int col, int expert,
                           bool accumulate) {
    PRIMUS_UNROLL
    for (int i = 0; i < WideSums::kCols / kPanelLine; ++i) {
      BFloat16* const panel = panels[i % 2];
      if (lane() == 0) wait_for_boxes<1>();  // the TMA has read the box before the last box
      warp_barrier();
      PRIMUS_UNROLL
      for (int j = 0; j < kPanelLine / 8; ++j) {
        PRIMUS_UNROLL
        for (int half = 0; half < 2; ++half) {
          const int at = i * kPanelLine / 2 + 4 * j + 2 * half;
          const float pair[2] = {sums.at[at], sums.at[at + 1]};
          store(in_panel(panel, lane() / 4 + 8 * half, j) + lane() % 4 * 2, pair);
        }
      }
      show_writes();
      warp_barrier();
      if (lane() != 0) continue;
      if (accumulate) {
        copy_box_back<true>(panel, map, col + i * kPanelLine, row, expert);
      } else {
        copy_box_back<false>(panel, map, col + i * kPanelLine, row, expert);
      }
      end_group_of_boxes();
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
