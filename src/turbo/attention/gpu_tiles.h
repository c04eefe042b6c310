// Shared code of the attention kernels on tiles: tiles in shared memory, and the two kinds of tile products.
//
// A block processes kRows queries, 16 per warp, and iterates over keys in steps of kCols. (In one backward
// kernel, queries and keys have exchanged roles.) Scores are products over the head dimension. This dimension
// passes through shared memory in slices of kDepth, so that heads of any width fit. Results are sums over the
// steps, with at most kWide columns. Wider heads are divided into column panels, with one block per panel.
#pragma once

#include "turbo/attention/gpu_scores.h"
#include "turbo/attention/gpu_visibility.h"
#include "turbo/gpu/mma.h"
#include "turbo/gpu/reduce.h"

namespace primus::turbo::PRIMUS_GPU {

// Rows of one head: row r begins at data + r * stride; there are `rows` rows with `cols` elements.
template <class T>
struct HeadRows {
  using Element = T;
  const T* data;
  std::int64_t stride, rows, cols;
  PRIMUS_DEVICE const T* at(std::int64_t row) const { return data + row * stride; }
};

// Rows in pages of a cache; `table` lists the pages in order.
template <class T>
struct PagedRows {
  using Element = T;
  const T* data;
  std::int64_t stride, rows, cols;
  const std::int32_t* table;
  int page_bits;  // log2 of the rows per page
  PRIMUS_DEVICE const T* at(std::int64_t row) const {
    const std::int64_t page = table[row >> page_bits];
    return data + ((page << page_bits) + (row & ((std::int64_t{1} << page_bits) - 1))) * stride;
  }
};

template <class T>
struct AttentionTiles {
  static constexpr bool kHalf = sizeof(T) == 2;
  static constexpr int kWarps = 4, kThreads = kWarps * kWarp;
  static constexpr int kRows = kWarps * kTile;
  static constexpr int kCols = kHalf ? 64 : 32;
  static constexpr int kDepth = kHalf ? 128 : 64;
  static constexpr int kWide = kHalf ? 128 : 64;
  static constexpr int kPad = kVector<T>;  // keeps rows aligned to 16 bytes, and avoids bank conflicts

  // Whether sums stay in registers and become operands of the next product without passing through memory.
  static constexpr bool kDirect = kHalf && kWarp == 32;
  // Number of left operands that stay in shared memory while a block iterates over right operands. AMD GPUs
  // have 64 KiB of shared memory, with space for only one left operand.
  static constexpr int kLefts = kDirect ? 2 : 1;

  struct Memory {
    T left[kLefts][kRows][kDepth + kPad];
    T right[kCols][kDepth + kPad];
    T wide[kCols][kWide + kPad];
    // Left operand of the second product; each warp uses 16 rows.
    T weights[kDirect ? 1 : kRows][kCols + kPad];
  };

  using Scores = Accumulator[kCols / kTile];
  using Sums = Accumulator[kWide / kTile];

  template <int kN>
  PRIMUS_DEVICE static void clear(Accumulator (&tiles)[kN]) {
    PRIMUS_UNROLL
    for (int j = 0; j < kN; ++j) tiles[j].clear();
  }

  // Copies 16 bytes from global to shared memory, on NVIDIA asynchronously.
  PRIMUS_DEVICE static void copy_line(T* to, const T* from) {
#if PRIMUS_CUDA_ARCH >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                     static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
                 "l"(from)
                 : "memory");
#else
    *reinterpret_cast<Pack<T, kVector<T>>*>(to) = *reinterpret_cast<const Pack<T, kVector<T>>*>(from);
#endif
  }
  PRIMUS_DEVICE static void wait_for_fetches() {
#if PRIMUS_CUDA_ARCH >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
  }

  // Returns whether a row exists. `Rows` may define holds(row) if some of its rows do not exist.
  template <class Rows>
  PRIMUS_DEVICE static bool holds(const Rows& from, std::int64_t row) {
    if constexpr (requires { from.holds(row); }) return row < from.rows && from.holds(row);
    return row < from.rows;
  }

  // Sets to[r][c] = from(row + r, col + c), or 0 outside `from`. The copy is complete after
  // wait_for_fetches() and a barrier.
  template <int kTileRows, int kTileCols, class Rows>
  PRIMUS_DEVICE static void fetch(T (&to)[kTileRows][kTileCols], const Rows& from, std::int64_t row,
                                  std::int64_t col) {
    constexpr int kCount = kVector<T>;
    constexpr int kPacks = (kTileCols - kPad) / kCount;
    const bool whole = reinterpret_cast<std::uintptr_t>(from.data) % 16 == 0 && from.stride % kCount == 0 &&
                       from.cols % kCount == 0;
    // Fetches only the columns of complete tiles, because products do not read columns after the last tile.
    const std::int64_t needed = (from.cols - col + kTile - 1) / kTile * kTile;
    using Line = Pack<T, kCount>;
    for (int i = thread(); i < kTileRows * kPacks; i += kThreads) {
      const int r = i / kPacks, c = i % kPacks * kCount;
      if (c >= needed) continue;
      Line line{};
      if (holds(from, row + r)) {
        const T* source = from.at(row + r) + col + c;
        if (whole) {
          if (col + c < from.cols) {
            copy_line(&to[r][c], source);
            continue;
          }
        } else {
          PRIMUS_UNROLL
          for (int k = 0; k < kCount; ++k) {
            if (col + c + k < from.cols) line.at[k] = source[k];
          }
        }
      }
      *reinterpret_cast<Line*>(&to[r][c]) = line;
    }
  }

  // scores = left rows · right rowsᵀ, summed over all columns. If the left rows have at most kDepth columns
  // and enough slots exist, the left rows stay in slot `left_index` of shared memory, and `loaded` becomes
  // true. Calls also(), which fetches data that the caller needs next. All fetches are complete on return.
  template <class Left, class Rows, class Also>
  PRIMUS_DEVICE static void multiply_rows(Memory& m, Scores& scores, int left_index, const Left& left,
                                          std::int64_t row, const Rows& right, std::int64_t col, bool& loaded,
                                          Also also) {
    clear(scores);
    const int place = left_index < kLefts ? left_index : 0;
    for (std::int64_t depth = 0; depth < left.cols; depth += kDepth) {
      barrier();
      if (!loaded) fetch(m.left[place], left, row, depth);
      fetch(m.right, right, col, depth);
      if (depth == 0) also();
      wait_for_fetches();
      barrier();
      PRIMUS_UNROLL
      for (int d = 0; d < kDepth; d += kTile) {
        if (depth + d >= left.cols) break;
        const auto x = load_left<false>(&m.left[place][warp() * kTile][d], kDepth + kPad);
        PRIMUS_UNROLL
        for (int j = 0; j < kCols / kTile; ++j) {
          multiply(scores[j], x, load_right<false>(&m.right[j * kTile][d], kDepth + kPad));
        }
      }
    }
    loaded = left.cols <= kDepth && left_index < kLefts;
  }

  // sums += weights · wide. Columns [col, col + kWide) of `wide` are in shared memory; only the first `cols`
  // of these columns are valid.
  PRIMUS_DEVICE static void add_weighted(Memory& m, Sums& sums, const Scores& weights, std::int64_t col,
                                         std::int64_t cols) {
    if constexpr (!kDirect) {
      PRIMUS_UNROLL
      for (int j = 0; j < kCols / kTile; ++j) {
        PRIMUS_UNROLL
        for (int i = 0; i < kPerLane; ++i) {
          m.weights[warp() * kTile + Accumulator::row(i)][j * kTile + Accumulator::col(i)] =
              from_float<T>(weights[j].at[i]);
        }
      }
      warp_barrier();  // a warp reads only its own rows
    }
    PRIMUS_UNROLL
    for (int d = 0; d < kCols; d += kTile) {
      const auto x = left_weights(m, weights, d);
      PRIMUS_UNROLL
      for (int j = 0; j < kWide / kTile; ++j) {
        if (col + j * kTile >= cols) break;
        multiply(sums[j], x, load_right<true>(&m.wide[d][j * kTile], kWide + kPad));
      }
    }
  }
  PRIMUS_DEVICE static Operand<T> left_weights(Memory& m, const Scores& weights, int d) {
    if constexpr (kDirect) {
      return to_left<T>(weights[d / kTile]);
    } else {
      return load_left<false>(&m.weights[warp() * kTile][d], kCols + kPad);
    }
  }

  // Sets to(row + r, col + c) = sums * factor[slot] inside [rows, cols). If `accumulate` is set, adds
  // instead.
  template <class Out>
  PRIMUS_DEVICE static void store(const Sums& sums, Out* to, std::int64_t stride, std::int64_t row,
                                  std::int64_t col, std::int64_t rows, std::int64_t cols,
                                  const float (&factor)[Accumulator::kRows], bool accumulate = false) {
    PRIMUS_UNROLL
    for (int j = 0; j < kWide / kTile; ++j) {
      PRIMUS_UNROLL
      for (int i = 0; i < kPerLane; ++i) {
        const std::int64_t r = row + warp() * kTile + Accumulator::row(i),
                           c = col + j * kTile + Accumulator::col(i);
        if (r >= rows || c >= cols) continue;
        const float value = sums[j].at[i] * factor[Accumulator::slot(i)];
        Out& element = to[r * stride + c];
        element = from_float<Out>(accumulate ? to_float(element) + value : value);
      }
    }
  }
};

// Returns a tile kernel, and sets the members that all tile kernels have. Other members stay unset. `s`: the
// call's shape; `documents`: its first_key or null.
template <template <class> class Kernel, class T, class Call>
Kernel<T> on_tiles(Context& context, const Call& call, const AttentionShape& s, const std::int32_t* documents,
                   const std::int32_t* unless_zero) {
  return {.visibility = Visibility(s, documents),
          .q = context.data<T>(call.q),
          .k = context.data<T>(call.k),
          .v = context.data<T>(call.v),
          .q_stride = call.q_stride,
          .k_stride = call.k_stride,
          .v_stride = call.v_stride,
          .batch = s.batch,
          .capacity_k = s.capacity_k,
          .heads = s.heads,
          .group = s.heads / s.kv_heads,
          .head_dim = s.head_dim,
          .value_dim = s.value_dim,
          .scale = {s.scale, s.score_cap},
          .unless_zero = unless_zero};
}

}  // namespace primus::turbo::PRIMUS_GPU
