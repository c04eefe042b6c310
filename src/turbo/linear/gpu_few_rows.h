// Products of one or two rows, y = x · Wᵀ, as in decoding. Such a product takes the time of reading W once. A
// kernel has two template arguments (gpu_few_rows_parts.h): the first loads rows of x (StagedRows,
// NormedRows), the second processes and stores results (PlainResults, GatedResults, RotatedResults).
//
// Blocks are persistent: each block processes one tile of rows of W at a time and reads weights without a
// pause. The first weights are prefetched while the previous kernel still computes x. With the matrix units,
// computing sums takes less time than reading. The warps of a block divide the columns of W among themselves
// and add their sums in warp order. An element of the result therefore has the same bits for both classes of
// rows and for any number of rows of x and of W. The bits are also the same whether weights are loaded into
// registers (here) or into a ring buffer (gpu_few_rows_ring.h).
#pragma once

#include <type_traits>

#include "turbo/gpu/prefetch_run.h"
#include "turbo/linear/gpu_few_rows_parts.h"
#include "turbo/linear/gpu_few_rows_ring.h"

namespace primus::turbo::PRIMUS_GPU {

// Loads weights from global memory directly into operands.
template <class Rows, class Results>
struct FewRowProduct : FewRowTiles<Rows, Results> {
  using Tiles = FewRowTiles<Rows, Results>;
  using Tiles::kStep, Tiles::rows, Tiles::in, Tiles::tiles;
  static constexpr int kThreads = kFewRowThreads;
  static constexpr int kInFlight = 8;  // number of steps whose weights are read ahead
  // Bytes per row of the first tile that are prefetched while the previous kernel still runs.
  static constexpr int kEarlyBytes = 8192;

  int groups;  // number of groups of kInFlight steps

  PRIMUS_DEVICE void operator()() const {
    const int column = warp() * Stripe::kCols + Stripe::col(), step_of_tiles = static_cast<int>(blocks());
    const int own_row = Stripe::row(0);
    const bool there = own_row < rows;
    // Tile, group and column of the next read.
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
            ahead = in;  // there are no more tiles
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

// Returns whether the kernels support these numbers of rows and columns. The number of columns must be a
// multiple of 8, and the shared memory of two blocks must fit into a multiprocessor. The caller checks that x
// and W are aligned to 16 bytes. For more rows, gpu_skinny.cu is faster.
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
    // The ring cannot start while the previous kernel runs. For a large matrix, this costs little.
    constexpr std::int64_t kLarge = std::int64_t{1} << 27;
    if (has_warpgroups(context) && (in >= Ring::kLongRow || count * in >= kLarge)) {
      return launch(context, std::min<std::int64_t>(tiles.tiles, multiprocessors(context)),
                    Ring{tiles, static_cast<int>(staged)},
                    static_cast<std::size_t>(staged + Ring::kPlaces * Ring::kPlaceBytes));
    }
  }
  using Product = FewRowProduct<Rows, Results>;
  // Launches three blocks per multiprocessor, because two blocks do not keep enough reads in flight.
  constexpr std::int64_t kBlocks = 3, kUnasked = 40 << 10, kAsked = (48 << 10) + 16;
  // A block also has static shared memory, so it may need more than 48 KiB in total even if `staged` is
  // slightly less than 48 KiB.
  const std::int64_t bytes = staged > kUnasked ? std::max(staged, kAsked) : staged;
  launch(context, std::min<std::int64_t>(tiles.tiles, kBlocks * multiprocessors(context)),
         Product{tiles, static_cast<int>(blocks_for(in, Product::kInFlight * Product::kStep))},
         static_cast<std::size_t>(bytes));
}

}  // namespace primus::turbo::PRIMUS_GPU
