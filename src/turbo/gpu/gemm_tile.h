// Our own matrix product for the cases that no library covers: any strides, gathered rows, many products in
// one launch, row ranges computed on the device, operands of different types.
//
//   C[m, n] (+)= sum over k of A(m, k) · B(n, k)
//
// Operands that are both bf16 or both fp16 are multiplied on the matrix units. If one operand is fp32, the
// product is computed in fp32. A block computes a tile of 64 x 64.
#pragma once

#include "turbo/gpu/mma.h"

namespace primus::turbo::PRIMUS_GPU {

template <class A, class B, class C>
struct TileProduct {
  static constexpr int kSide = 64, kDepth = 32, kWarps = 4;
  static constexpr int kThreads = kWarps * kWarp;
  // The type that is multiplied: 16 bits only if both operands have the same 16-bit type.
  using T = std::conditional_t<std::is_same_v<A, B> && sizeof(A) == 2, A, float>;

  std::int64_t m, n, k;
  const A* a;
  const B* b;
  C* c;
  // Strides between rows, and between consecutive terms of a sum.
  std::int64_t a_row, a_col, b_row, b_col, c_row;
  std::int64_t batches, a_batch, b_batch, c_batch;
  bool accumulate;

  // For experts: batch e has rows [offsets[e], offsets[e + 1]) of the activations, and `m` (or `k` if rows
  // are summed over) is an upper bound. Null: no expert offsets.
  const std::int32_t* offsets;
  bool sum_rows;
  const std::int32_t *a_picks, *b_picks;  // row r of the activations is in row picks[r]; null: in row r

  struct Tiles {
    // Padding of each row puts adjacent rows in different banks.
    T a[kSide][kDepth + 8];
    T b[kSide][kDepth + 8];
  };

  // Fills a tile; adjacent threads read adjacent elements. `picks` are indices of rows if rows of the tile
  // are rows of the activations. Otherwise `picks` are indices of depths.
  template <class X>
  PRIMUS_DEVICE static void fill(T (&tile)[kSide][kDepth + 8], const X* x, std::int64_t row,
                                 std::int64_t depth, std::int64_t rows, std::int64_t depths,
                                 std::int64_t row_step, std::int64_t depth_step,
                                 const std::int32_t* row_picks, const std::int32_t* depth_picks) {
    for (int i = thread(); i < kSide * kDepth; i += kThreads) {
      const int r = depth_step == 1 ? i / kDepth : i % kSide, d = depth_step == 1 ? i % kDepth : i / kSide;
      const std::int64_t at_row = row + r, at_depth = depth + d;
      if (at_row >= rows || at_depth >= depths) {
        tile[r][d] = from_float<T>(0.0F);
        continue;
      }
      const std::int64_t picked_row = row_picks ? row_picks[at_row] : at_row;
      const std::int64_t picked_depth = depth_picks ? depth_picks[at_depth] : at_depth;
      const X value = x[picked_row * row_step + picked_depth * depth_step];
      if constexpr (std::is_same_v<X, T>) {
        tile[r][d] = value;
      } else {
        tile[r][d] = to_float(value);
      }
    }
  }

  PRIMUS_DEVICE std::int64_t row_tiles() const { return (m + kSide - 1) / kSide; }
  PRIMUS_DEVICE std::int64_t col_tiles() const { return (n + kSide - 1) / kSide; }

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t tiles = row_tiles() * col_tiles(), batch = block() / tiles;
    const std::int64_t row = block() % tiles / col_tiles() * kSide,
                       col = block() % tiles % col_tiles() * kSide;
    const A* left = a + batch * a_batch;
    const B* right = b + batch * b_batch;
    C* to = c + batch * c_batch;
    std::int64_t rows = m, depths = k;
    const std::int32_t *left_rows = nullptr, *left_depths = nullptr, *right_depths = nullptr;
    if (offsets) {
      const std::int64_t first = offsets[batch], count = offsets[batch + 1] - first;
      if (sum_rows) {
        if (accumulate && count == 0) return;
        depths = count;
        left_depths = a_picks ? a_picks + first : nullptr;
        right_depths = b_picks ? b_picks + first : nullptr;
        left += a_picks ? 0 : first * a_col;
        right += b_picks ? 0 : first * b_col;
      } else {
        if (row >= count) return;
        rows = count;
        left_rows = a_picks ? a_picks + first : nullptr;
        left += a_picks ? 0 : first * a_row;
        to += first * c_row;
      }
    }
    Tiles& in = shared<Tiles>();
    Accumulator sums[kSide / kTile];  // each warp computes 16 rows
    PRIMUS_UNROLL
    for (int j = 0; j < kSide / kTile; ++j) sums[j].clear();
    for (std::int64_t depth = 0; depth < depths; depth += kDepth) {
      barrier();
      fill(in.a, left, row, depth, rows, depths, a_row, a_col, left_rows, left_depths);
      fill(in.b, right, col, depth, n, depths, b_row, b_col, nullptr, right_depths);
      barrier();
      PRIMUS_UNROLL
      for (int d = 0; d < kDepth; d += kTile) {
        const auto x = load_left<false>(&in.a[warp() * kTile][d], kDepth + 8);
        PRIMUS_UNROLL
        for (int j = 0; j < kSide / kTile; ++j) {
          multiply(sums[j], x, load_right<false>(&in.b[j * kTile][d], kDepth + 8));
        }
      }
    }
    PRIMUS_UNROLL
    for (int j = 0; j < kSide / kTile; ++j) {
      PRIMUS_UNROLL
      for (int i = 0; i < kPerLane; ++i) {
        const std::int64_t r = row + warp() * kTile + Accumulator::row(i);
        const std::int64_t s = col + j * kTile + Accumulator::col(i);
        if (r >= rows || s >= n) continue;
        C& out = to[r * c_row + s];
        out = from_float<C>(accumulate ? to_float(out) + sums[j].at[i] : sums[j].at[i]);
      }
    }
  }
};

template <class A, class B, class C>
void run_product(Context& context, const TileProduct<A, B, C>& product) {
  constexpr int kSide = TileProduct<A, B, C>::kSide;
  launch(context, blocks_for(product.m, kSide) * blocks_for(product.n, kSide) * product.batches, product);
}

}  // namespace primus::turbo::PRIMUS_GPU
