// Products of one or two rows, y = x · Wᵀ, as in decoding, where reading W once is the bottleneck. A kernel
// combines a source of rows (StagedRows, NormedRows) with a use of the results (PlainResults, GatedResults,
// RotatedResults; gpu_few_rows_parts.h).
//
// Blocks are persistent and process one tile of rows of W after the other, so that weights stream without a
// pause; the first weights are prefetched while the previous kernel still computes x. The matrix units make
// sums so cheap that only reading costs time. The warps of a block share the columns and add their sums in
// warp order. So an element of the result has the same bits for every source of x, for any other rows and
// columns, and whether weights pass through registers (here) or through a ring (gpu_few_rows_ring.h).
#pragma once

#include <type_traits>

#include "turbo/linear/gpu_few_rows_parts.h"
#include "turbo/linear/gpu_few_rows_ring.h"

namespace primus::turbo::PRIMUS_GPU {

// Prefetches a run of bytes into L2 from one thread, if the GPU supports it. Address and size are multiples
// of 16.
PRIMUS_DEVICE void prefetch_run([[maybe_unused]] const void* from, [[maybe_unused]] int bytes) {
#if PRIMUS_CUDA_ARCH >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)), "r"(bytes)
               : "memory");
#endif
}

// Loads weights straight from global memory into operands.
template <class Rows, class Results>
struct FewRowProduct : FewRowTiles<Rows, Results> {
  using Tiles = FewRowTiles<Rows, Results>;
  using Tiles::kStep, Tiles::rows, Tiles::in, Tiles::tiles;
  static constexpr int kThreads = kFewRowThreads;
  static constexpr int kInFlight = 8;  // steps read ahead
  // Bytes per row of the first tile that are prefetched while the previous kernel still runs.
  static constexpr int kEarlyBytes = 8192;

  int groups;  // groups of kInFlight steps

  PRIMUS_DEVICE void operator()() const {
    const int column = warp() * Stripe::kCols + Stripe::col(), step_of_tiles = static_cast<int>(blocks());
    const int own_row = Stripe::row(0);
    const bool there = own_row < rows;
    // The next read: its tile, group and column.
    int ahead_tile = static_cast<int>(block()), ahead_group = 0, ahead = column;
    const BFloat16* from;
    const auto open_tile = [&] {
      from = this->row_of(ahead_tile, own_row);
      ahead = column;
    };
    Bytes16 weights[kInFlight];
    const auto fetch = [&](int j, int at) { weights[j] = at < in ? load_line_once(from + at) : Bytes16{}; };

    let_next_begin();
    open_tile();
    PRIMUS_UNROLL
    for (int j = 0; j < kInFlight; ++j) fetch(j, ahead + j * kStep);
    if (thread() < kStripeRows) {
      const int bytes = in * static_cast<int>(sizeof(BFloat16));
      prefetch_run(this->row_of(ahead_tile, thread()), bytes < kEarlyBytes ? bytes : kEarlyBytes);
    }
    const auto meet = [] { barrier(); };
    this->rows_of_x.prepare(meet);

    int parity = 0;
    for (int tile = static_cast<int>(block()); tile < tiles; tile += step_of_tiles) {
      Accumulator sum;
      sum.clear();
      int at = column;
      for (int group = 0; group < groups; ++group) {
        ahead += kInFlight * kStep;
        if (++ahead_group == groups) {
          ahead_group = 0, ahead_tile += step_of_tiles;
          if (ahead_tile < tiles) {
            open_tile();
          } else {
            ahead = in;  // no more tiles
          }
        }
        PRIMUS_UNROLL
        for (int j = 0; j < kInFlight; ++j) {
          const int here = at + j * kStep;
          Stripe left{};
          left.of_row[0] = there && here < in ? this->rows_of_x.line(own_row, here) : Bytes16{};
          const Stripe right{{weights[j]}};
          PRIMUS_UNROLL
          for (int product = 0; product < Stripe::kProducts; ++product)
            multiply<1>(sum, left.left(product), right.right(product));
          fetch(j, ahead + j * kStep);
        }
        at += kInFlight * kStep;
      }
      this->finish(tile, parity, sum, meet);
      parity ^= 1;
    }
  }
};

// ---- Launches -----------------------------------------------------------------------------------

// Returns whether the kernels accept these rows and columns, given 16-byte aligned x and W: columns are a
// multiple of 8, and two blocks' rows fit shared memory with everything else. For more rows gpu_skinny.cu is
// faster.
inline bool takes_few_rows(const Context& context, std::int64_t rows, std::int64_t in, std::int64_t out) {
  constexpr std::int64_t kMax = 1 << 30, kElse = 8 << 10, kAlways = 40 << 10;
  return rows >= 1 && rows <= kFewRows && in >= 1 && in % 8 == 0 && in <= kMax && out <= kMax &&
         StagedRows::shared_bytes(rows, in) <= std::max(max_shared(context) / 2 - kElse, kAlways);
}

template <class Rows, class Results>
void launch_few_rows(Context& context, const Rows& x, const Results& results, std::int64_t count,
                     const BFloat16* w, std::int64_t rows, std::int64_t in) {
  const FewRowTiles<Rows, Results> tiles{
      x,
      results,
      w,
      static_cast<int>(rows),
      static_cast<int>(in),
      static_cast<int>(blocks_for(count, FewRowTiles<Rows, Results>::kItems))};
  const std::int64_t staged = StagedRows::shared_bytes(rows, in);
  if constexpr (kWarp == 32 && std::is_same_v<Rows, StagedRows>) {
    using Ring = FewRowRing<Rows, Results>;
    if (has_warpgroups(context) && in >= Ring::kLongRow) {
      return launch(context, std::min<std::int64_t>(tiles.tiles, multiprocessors(context)),
                    Ring{tiles, static_cast<int>(staged)},
                    static_cast<std::size_t>(staged + Ring::kPlaces * Ring::kPlaceBytes));
    }
  }
  using Product = FewRowProduct<Rows, Results>;
  // Launches three blocks per multiprocessor, because with two, reading is latency-bound.
  constexpr std::int64_t kBlocks = 3, kUnasked = 40 << 10, kAsked = (48 << 10) + 16;
  // A block also has static shared memory, so it may need more than 48 KiB even if `staged` is a little less.
  const std::int64_t bytes = staged > kUnasked ? std::max(staged, kAsked) : staged;
  launch(context, std::min<std::int64_t>(tiles.tiles, kBlocks * multiprocessors(context)),
         Product{tiles, static_cast<int>(blocks_for(in, Product::kInFlight * Product::kStep))},
         static_cast<std::size_t>(bytes));
}

}  // namespace primus::turbo::PRIMUS_GPU
