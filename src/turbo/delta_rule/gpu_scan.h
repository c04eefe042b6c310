// Shared code of the delta rule's scans over the chunks of a sequence, on GPUs.
#pragma once

#include "turbo/delta_rule/gpu_delta_rule.h"
#include "turbo/gpu/mma.h"

namespace primus::turbo::PRIMUS_GPU {

// A block of a scan processes one head of a sequence and kScanColumns value columns of this head.
constexpr int kScanColumns = kTile, kScanThreads = 128, kScanPiece = 64;
constexpr int kScanTiles = kRows / kTile / (kScanThreads / kWarp);  // number of tiles of 16 rows per warp
constexpr int kScanStep = kScanColumns + 8;
static_assert(kScanPiece == kRows);

// The shared memory of a scan: a state, a copy of the state in type T, some columns of a matrix with one row
// per token, and the right operands. The state is initially zero.
template <class T>
struct DeltaScanMemory {
  float* state;                // [key_dim, kScanColumns]
  T* rounded;                  // [padded key_dim, kScanStep]
  T (*piece)[kScanPiece + 8];  // [kRows]: kScanPiece columns of a [kRows, key_dim] matrix
  T (*right)[kScanStep], (*more)[kScanStep];

  PRIMUS_DEVICE static std::int64_t padded(std::int64_t key_dim) {
    return (key_dim + kScanPiece - 1) / kScanPiece * kScanPiece;
  }
  static std::size_t bytes(std::int64_t key_dim) {
    const std::int64_t rows = blocks_for(key_dim, kScanPiece) * kScanPiece;
    return static_cast<std::size_t>(rows) * (kScanColumns * sizeof(float) + kScanStep * sizeof(T)) +
           sizeof(T) * kRows * (kScanPiece + 8 + 2 * kScanStep);
  }
  PRIMUS_DEVICE explicit DeltaScanMemory(std::int64_t key_dim) {
    unsigned char* at = dynamic_shared();
    state = reinterpret_cast<float*>(at);
    at += padded(key_dim) * kScanColumns * static_cast<std::int64_t>(sizeof(float));
    rounded = reinterpret_cast<T*>(at);
    at += padded(key_dim) * kScanStep * static_cast<std::int64_t>(sizeof(T));
    piece = reinterpret_cast<T(*)[kScanPiece + 8]>(at);
    right = reinterpret_cast<T(*)[kScanStep]>(piece + kRows);
    more = right + kRows;
    for (std::int64_t i = thread(); i < padded(key_dim) * kScanColumns; i += kScanThreads) state[i] = 0;
  }

  // Loads columns, starting at `column`, of rows with `key_dim` columns. Uses barriers before and after.
  PRIMUS_DEVICE void load_piece(const T* from, std::int64_t key_dim, std::int64_t column) const {
    constexpr int kCount = kVector<T>;
    barrier();
    if (key_dim % kCount == 0) {
      for (int at = thread() * kCount; at < kRows * kScanPiece; at += kScanThreads * kCount) {
        const int i = at / kScanPiece, c = at % kScanPiece;
        const bool there = column + c < key_dim;
        const Bytes16 line = there ? load_line(from + i * key_dim + column + c) : Bytes16{};
        T* const to = &piece[i][c];
        *reinterpret_cast<Pack<T, kCount>*>(to) = std::bit_cast<Pack<T, kCount>>(line);
      }
    } else {
      for (int at = thread(); at < kRows * kScanPiece; at += kScanThreads) {
        const int i = at / kScanPiece, c = at % kScanPiece;
        piece[i][c] = column + c < key_dim ? from[i * key_dim + column + c] : from_float<T>(0.0F);
      }
    }
    barrier();
  }
  // Stores the current state in the T copy and in `to` [key_dim, value_dim]. A barrier must follow.
  PRIMUS_DEVICE void keep_state(T* to, std::int64_t key_dim, std::int64_t value_dim,
                                std::int64_t column) const {
    for (std::int64_t at = thread(); at < padded(key_dim) * kScanColumns; at += kScanThreads) {
      const std::int64_t c = at / kScanColumns, v = at % kScanColumns;
      const T value = from_float<T>(state[at]);
      rounded[c * kScanStep + v] = value;
      if (c < key_dim && column + v < value_dim) to[c * value_dim + column + v] = value;
    }
  }
  // Adds the product of `rows` [kRows, key_dim] and the rounded state to the sums.
  PRIMUS_DEVICE void multiply_state(const T* rows, std::int64_t key_dim,
                                    Accumulator (&sums)[kScanTiles]) const {
    for (std::int64_t column = 0; column < key_dim; column += kScanPiece) {
      load_piece(rows, key_dim, column);
      PRIMUS_UNROLL
      for (int c = 0; c < kScanPiece; c += kTile) {
        const auto y = load_right<true>(rounded + (column + c) * kScanStep, kScanStep);
        PRIMUS_UNROLL
        for (int t = 0; t < kScanTiles; ++t)
          multiply(sums[t], load_left<false>(&piece[tile_row(t)][c], kScanPiece + 8), y);
      }
    }
  }
  // Sets sums to pieceᵀ · by; the rows of the result are channels.
  PRIMUS_DEVICE void multiply_piece(const T (*by)[kScanStep], Accumulator (&sums)[kScanTiles]) const {
    PRIMUS_UNROLL
    for (int t = 0; t < kScanTiles; ++t) sums[t].clear();
    PRIMUS_UNROLL
    for (int i = 0; i < kRows; i += kTile) {
      const auto y = load_right<true>(&by[i][0], kScanStep);
      PRIMUS_UNROLL
      for (int t = 0; t < kScanTiles; ++t)
        multiply(sums[t], load_left<true>(&piece[i][tile_row(t)], kScanPiece + 8), y);
    }
  }
  PRIMUS_DEVICE static int tile_row(int t) { return (warp() * kScanTiles + t) * kTile; }
  // Calls visit(tile, element, row, column) for this lane's elements of its warp's tiles.
  template <class Visit>
  PRIMUS_DEVICE static void for_each_element(Visit visit) {
    PRIMUS_UNROLL
    for (int t = 0; t < kScanTiles; ++t) {
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; ++n) visit(t, n, tile_row(t) + Accumulator::row(n), Accumulator::col(n));
    }
  }
  // Decays the state over a chunk and adds `sums`, for the channels from `column` on.
  PRIMUS_DEVICE void pass(const DeltaItems<T>& in, const double* gates, std::int64_t item, float through,
                          std::int64_t column, const Accumulator (&sums)[kScanTiles]) const {
    for_each_element([&](int t, int n, int row, int v) {
      const std::int64_t c = column + row;
      if (c >= in.key_dim) return;
      float& value = state[c * kScanColumns + v];
      value = multiply_add(in.channel_gates ? in.through(gates, item, c) : through, value, sums[t].at[n]);
    });
  }
};

// The sequence, head and first value column of a scan's block.
template <class T>
struct DeltaScanPlace {
  std::int64_t sequence, head, first;
  PRIMUS_DEVICE explicit DeltaScanPlace(const DeltaItems<T>& in) {
    const std::int64_t slices = (in.value_dim + kScanColumns - 1) / kScanColumns, of_head = block() / slices;
    sequence = of_head / in.heads;
    head = of_head % in.heads;
    first = block() % slices * kScanColumns;
  }
};
template <class T, class Scan>
void launch_scan(Context& context, const DeltaItems<T>& in, const Scan& scan) {
  launch(context, in.batch * in.heads * blocks_for(in.value_dim, kScanColumns), scan,
         DeltaScanMemory<T>::bytes(in.key_dim));
}

}  // namespace primus::turbo::PRIMUS_GPU
