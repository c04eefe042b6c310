// How a warp writes its sums of an expert's product (gpu_warpgroups.h) from its registers to C.
#pragma once

#include "turbo/gpu/warpgroup_products.h"
#include "turbo/gpu/warpgroup_results.h"

namespace primus::turbo::PRIMUS_GPU {

// A part of a warp's sums on its way to C. With 32 bytes more, no two rows meet one bank.
struct alignas(32) GroupPatch {
  static constexpr int kRows = 8, kCols = 128, kStep = kCols + 8;
  float at[(kRows - 1) * kStep + kCols];
  PRIMUS_DEVICE float* line(int row) { return at + row * kStep; }
};

// The warp's 16 rows of C in memory.
template <class C>
struct GroupResults {
  C* to;
  std::int64_t step;  // elements from one row to the next
  int rows, cols;     // that are there; the other sums are not written
  bool accumulate;

  // Four lanes have eight neighbours in two words each; one of them gets all of eight.
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

  // By way of shared memory, so that a warp writes long parts of lines: the memory is slow with short ones.
  PRIMUS_DEVICE void write_patches(GroupPatch& patch, const WideSums& sums) const {
    constexpr int kAcross = WideSums::kCols / GroupPatch::kCols, kPatches = 2 * kAcross;
    // 16 bytes of bf16 for each lane and two rows, read one patch ahead.
    constexpr int kLoads = GroupPatch::kRows / 2;
    [[maybe_unused]] Pack<BFloat16, 8> old[2][kLoads];
    const auto load_old = [&](int i) {
      PRIMUS_UNROLL
      for (int j = 0; j < kLoads; ++j) {
        const int row = i / kAcross * 8 + 2 * j + lane() / 16;
        const int col = i % kAcross * GroupPatch::kCols + lane() % 16 * 8;
        old[i % 2][j] = {};
        if (accumulate && row < rows && col < cols) {
          old[i % 2][j] =
              *reinterpret_cast<const Pack<BFloat16, 8>*>(to + static_cast<std::int64_t>(row) * step + col);
        }
      }
    };
    if constexpr (sizeof(C) == 2) load_old(0);
    PRIMUS_UNROLL
    for (int i = 0; i < kPatches; ++i) {
      const int half = i / kAcross, first_col = i % kAcross * GroupPatch::kCols;
      warp_barrier();  // the patch before was read by all
      PRIMUS_UNROLL
      for (int j = 0; j < GroupPatch::kCols / 8; ++j) {
        const int at = first_col / 2 + 4 * j + 2 * half;
        const float pair[2] = {sums.at[at], sums.at[at + 1]};
        store(patch.line(lane() / 4) + 8 * j + lane() % 4 * 2, pair);
      }
      // The sums of this patch have left their registers.
      if constexpr (sizeof(C) == 2) {
        if (i + 1 < kPatches) load_old(i + 1);
      }
      warp_barrier();
      C* const corner = to + static_cast<std::int64_t>(8 * half) * step + first_col;
      if constexpr (sizeof(C) == 4) {
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
      } else {
        PRIMUS_UNROLL
        for (int j = 0; j < kLoads; ++j) {
          const int row = 2 * j + lane() / 16, col = lane() % 16 * 8;
          float eight[8];
          load(patch.line(row) + col, eight);
          if (8 * half + row >= rows || first_col + col >= cols) continue;
          PRIMUS_UNROLL
          for (int l = 0; l < 8; ++l) eight[l] += to_float(old[i % 2][j].at[l]);
          store(corner + static_cast<std::int64_t>(row) * step + col, eight);
        }
      }
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
