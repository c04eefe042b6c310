// Which tiles of the experts' products a block takes, and in which order. It depends on the rows of each
// expert, so kernels of one block prepare it on the device.
#pragma once

#include "turbo/gpu/values.h"

namespace primus::turbo::PRIMUS_GPU {

// For products that sum rows (the weight gradient): experts by falling rows, and after them the tile where
// the second half of the work begins. One block.
struct OrderExperts {
  static constexpr int kThreads = 256;
  const std::int32_t* offsets;
  std::int32_t* order;          // [experts + 1]
  std::int64_t experts, tiles;  // tiles of each expert
  std::int64_t depth;           // rows in a step

  PRIMUS_DEVICE std::int32_t rows(std::int64_t expert) const { return offsets[expert + 1] - offsets[expert]; }
  // Of one tile, in steps; writing it counts as one.
  PRIMUS_DEVICE std::int64_t work(std::int64_t expert) const {
    return (rows(expert) + depth - 1) / depth + 1;
  }

  PRIMUS_DEVICE void operator()() const {
    for (std::int64_t expert = thread(); expert < experts; expert += kThreads) {
      const std::int32_t mine = rows(expert);
      std::int64_t before = 0;
      for (std::int64_t e = 0; e < experts; ++e) before += rows(e) > mine || (rows(e) == mine && e < expert);
      order[before] = static_cast<std::int32_t>(expert);
    }
    barrier();
    for (std::int64_t i = thread(); i < experts; i += kThreads) {
      std::int64_t before = 0, all = 0;
      for (std::int64_t j = 0; j < experts; ++j) {
        const std::int64_t more = tiles * work(order[j]);
        if (j < i) before += more;
        all += more;
      }
      const std::int64_t of_tile = work(order[i]), rest = all / 2 - before;
      if (rest >= 0 && rest < tiles * of_tile) {
        order[experts] = static_cast<std::int32_t>(i * tiles + rest / of_tile);
      }
    }
  }
};

// A product of each expert by tiles of kRows x kCols. Where rows are not summed, tiles are numbered by
// expert, and blocks take them in turn. Where they are, tiles of experts with many rows keep the matrix units
// busy, those with few rows the memory. So half of the blocks begin with the largest expert, the other half
// with the smallest, until they meet.
template <bool kSumsRows, int kRows, int kCols, int kDepth>
struct GroupTileOrder {
  int m, n, k;  // m, or k when rows are summed, is not looked at: see offsets
  int experts;
  const std::int32_t* offsets;
  const std::int32_t* prepared;  // by CountRowTiles (gpu_tiles.h) or OrderExperts

  struct Tile {
    int expert, first, count;  // its rows of activations
    int row, col;              // of C
    int rows, cols;            // of C, from there to the expert's end
  };

  PRIMUS_DEVICE int col_tiles() const { return (n + kCols - 1) / kCols; }
  PRIMUS_DEVICE int row_tiles() const { return (m + kRows - 1) / kRows; }  // when rows are summed
  PRIMUS_DEVICE int tiles() const {
    return (kSumsRows ? experts * row_tiles() : prepared[experts]) * col_tiles();
  }

  // The block's i-th tile; negative: it has none any more.
  PRIMUS_DEVICE int tile(int i) const {
    const int all = tiles(), count = static_cast<int>(blocks()), me = static_cast<int>(block());
    if (!kSumsRows || count == 1) {
      const int next = i * count + me;
      return next < all ? next : -1;
    }
    const int split = prepared[experts], next = i * ((count + 1 - me % 2) / 2) + me / 2;
    if (me % 2 == 0) return next < split ? next : -1;
    return all - 1 - next >= split ? all - 1 - next : -1;
  }

  PRIMUS_DEVICE int expert_of(int tile) const {
    if constexpr (kSumsRows) return prepared[tile / (row_tiles() * col_tiles())];
    const int row_tile = tile / col_tiles();
    int low = 0, high = experts;  // the last expert that begins at or before this tile
    while (low + 1 < high) {
      const int middle = (low + high) / 2;
      if (prepared[middle] <= row_tile) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }
  PRIMUS_DEVICE int steps_of(int tile) const {
    if constexpr (!kSumsRows) return (k + kDepth - 1) / kDepth;
    const int expert = expert_of(tile);
    return (offsets[expert + 1] - offsets[expert] + kDepth - 1) / kDepth;
  }
  PRIMUS_DEVICE Tile at(int tile) const {
    Tile result;
    result.expert = expert_of(tile);
    const int rows = kSumsRows ? row_tiles() : prepared[result.expert + 1] - prepared[result.expert];
    tile = kSumsRows ? tile % (rows * col_tiles()) : tile - prepared[result.expert] * col_tiles();
    // Blocks that run together share rows and columns: eight columns of tiles, row by row.
    constexpr int kTogether = 8;
    const int band = tile / (rows * kTogether), in_band = tile % (rows * kTogether);
    const int left = col_tiles() - band * kTogether, width = left < kTogether ? left : kTogether;
    result.row = in_band / width * kRows;
    result.col = (band * kTogether + in_band % width) * kCols;
    result.first = offsets[result.expert];
    result.count = offsets[result.expert + 1] - result.first;
    result.rows = (kSumsRows ? m : result.count) - result.row;
    result.cols = n - result.col;
    return result;
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
