// 16 x 16 tiles distributed over a warp: accumulators, and bf16 and fp16 operands (mma.h). Accumulator::row
// and col define the mapping of elements to lanes. Code outside this file and mma.h must use these functions,
// and must not assume a mapping.
#pragma once

#include "turbo/gpu/values.h"

namespace primus::turbo::PRIMUS_GPU {

constexpr int kTile = 16;
// Number of elements of a tile per lane.
constexpr int kPerLane = kTile * kTile / kWarp;

// A tile of fp32 sums. With warps of 32, lane l holds rows l/4 and l/4 + 8, columns 2 (l%4) + {0, 1, 8, 9};
// with warps of 64, rows 4 (l/16) + {0, 1, 2, 3} of column l%16.
struct Accumulator {
  float at[kPerLane];

  PRIMUS_DEVICE void clear() {
    PRIMUS_UNROLL
    for (int i = 0; i < kPerLane; ++i) at[i] = 0;
  }
  PRIMUS_DEVICE static int row(int i) {
    if constexpr (kWarp == 32) return lane() / 4 + i / 2 % 2 * 8;
    return lane() / 16 * 4 + i;
  }
  PRIMUS_DEVICE static int col(int i) {
    if constexpr (kWarp == 32) return lane() % 4 * 2 + i % 2 + i / 4 * 8;
    return lane() % 16;
  }

  // The number of rows in which a lane has elements; slot(i) is the index of element i's row among these
  // rows.
  static constexpr int kRows = kWarp == 32 ? 2 : 4;
  PRIMUS_DEVICE static constexpr int slot(int i) { return kWarp == 32 ? i / 2 % 2 : i; }
  PRIMUS_DEVICE static int row_of_slot(int slot) {
    if constexpr (kWarp == 32) return lane() / 4 + slot * 8;
    return lane() / 16 * 4 + slot;
  }
  // Returns the index of the lane's first element in the column of element i.
  PRIMUS_DEVICE static constexpr int same_col(int i) { return kWarp == 32 ? i - i / 2 % 2 * 2 : 0; }
};

// Combines the values of the lanes that have elements of the same row; all these lanes get the result.
template <class Combine>
PRIMUS_DEVICE float reduce_row(float value, Combine combine) {
  constexpr int kLanes = kWarp == 32 ? 4 : 16;
  PRIMUS_UNROLL
  for (int mask = 1; mask < kLanes; mask *= 2) value = combine(value, from_lane_xor(value, mask));
  return value;
}
// Combines the values of the lanes that have elements of the same column; all these lanes get the result.
template <class Combine>
PRIMUS_DEVICE float reduce_col(float value, Combine combine) {
  PRIMUS_UNROLL
  for (int mask = kWarp == 32 ? 4 : 16; mask < kWarp; mask *= 2)
    value = combine(value, from_lane_xor(value, mask));
  return value;
}

// ---- bf16 and fp16 ------------------------------------------------------------------------------

// A lane's part of an operand tile [rows, k]. k is the dimension that is summed over.
template <class T>
struct Operand {
  static_assert(sizeof(T) == 2);
  T at[kPerLane];

  // These functions return the row and k of this lane's element i in the tile. Left operands (A) and right
  // operands (B) differ only in the position of the two halves of a 16-row tile.
  PRIMUS_DEVICE static int left_row(int i) {
    if constexpr (kWarp == 32) return lane() / 4 + i / 2 % 2 * 8;
    return lane() % 16;
  }
  PRIMUS_DEVICE static int left_k(int i) {
    if constexpr (kWarp == 32) return lane() % 4 * 2 + i % 2 + i / 4 * 8;
    return lane() / 16 * 4 + i;
  }
  PRIMUS_DEVICE static int right_row(int i) {
    if constexpr (kWarp == 32) return lane() / 4 + i / 4 * 8;
    return lane() % 16;
  }
  PRIMUS_DEVICE static int right_k(int i) {
    if constexpr (kWarp == 32) return lane() % 4 * 2 + i % 2 + i / 2 % 2 * 8;
    return lane() / 16 * 4 + i;
  }
};

// Loads the tile whose element (row, k) is tile[row * step + k] or, transposed, tile[k * step + row]. The
// tile's rows in memory are aligned to 16 bytes.
#if defined(__CUDACC__) && !defined(__HIP__)

// Loads four 8 x 8 matrices by one instruction: lane l passes the address of row l % 8 of matrix l / 8.
template <bool kTransposed, class T>
PRIMUS_DEVICE Operand<T> load_matrices(const T* row) {
  Operand<T> result;
#if PRIMUS_CUDA_ARCH >= 800
  auto* to = reinterpret_cast<std::uint32_t*>(result.at);
  const auto from = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
  }
#endif
  return result;
}

template <bool kTransposed, class T>
PRIMUS_DEVICE Operand<T> load_left(const T* tile, int step) {
  const int low = lane() % 8, first = lane() / 8 % 2 * 8, second = lane() / 16 * 8;
  return load_matrices<kTransposed>(kTransposed ? tile + (low + second) * step + first
                                                : tile + (low + first) * step + second);
}
template <bool kTransposed, class T>
PRIMUS_DEVICE Operand<T> load_right(const T* tile, int step) {
  const int low = lane() % 8, first = lane() / 8 % 2 * 8, second = lane() / 16 * 8;
  return load_matrices<kTransposed>(kTransposed ? tile + (low + first) * step + second
                                                : tile + (low + second) * step + first);
}

#else

template <bool kTransposed, class T>
PRIMUS_DEVICE Operand<T> load_left(const T* tile, int step) {
  Operand<T> result;
  PRIMUS_UNROLL
  for (int i = 0; i < kPerLane; ++i) {
    const int row = Operand<T>::left_row(i), k = Operand<T>::left_k(i);
    result.at[i] = kTransposed ? tile[k * step + row] : tile[row * step + k];
  }
  return result;
}
template <bool kTransposed, class T>
PRIMUS_DEVICE Operand<T> load_right(const T* tile, int step) {
  Operand<T> result;
  PRIMUS_UNROLL
  for (int i = 0; i < kPerLane; ++i) {
    const int row = Operand<T>::right_row(i), k = Operand<T>::right_k(i);
    result.at[i] = kTransposed ? tile[k * step + row] : tile[row * step + k];
  }
  return result;
}

#endif

// Rows of 32 columns. A lane reads 16 bytes of each of its rows from global memory. These bytes are operands
// of two products, and need not pass through shared memory. The columns of a stripe are permuted. The
// permutation is the same for left and right operands, and does not change the results.
struct Stripe {
  static constexpr int kCols = 32;
  static constexpr int kProducts = kCols / kTile;
  static constexpr int kRows = kWarp == 32 ? 2 : 1;  // number of rows of the tile per lane

  Bytes16 of_row[kRows];

  PRIMUS_DEVICE static int row(int i) { return kWarp == 32 ? lane() / 4 + i * 8 : lane() % 16; }
  PRIMUS_DEVICE static int col() { return (kWarp == 32 ? lane() % 4 : lane() / 16) * 8; }

  // Returns the left operand of a product: selects the operand's words from the rows. A word holds two
  // elements.
  PRIMUS_DEVICE Operand<BFloat16> left(int product) const {
    Words words;
    PRIMUS_UNROLL
    for (int i = 0; i < kWords; ++i) words.at[i] = of_row[i % kRows].word[product * 2 + i / kRows];
    return std::bit_cast<Operand<BFloat16>>(words);
  }
  PRIMUS_DEVICE Operand<BFloat16> right(int product) const {
    Words words;
    PRIMUS_UNROLL
    for (int i = 0; i < kWords; ++i) words.at[i] = of_row[i / 2].word[product * 2 + i % 2];
    return std::bit_cast<Operand<BFloat16>>(words);
  }

 private:
  static constexpr int kWords = kPerLane / 2;
  struct Words {
    std::uint32_t at[kWords];
  };
};

// Converts sums to a left operand. With warps of 32, the conversion uses only registers, because sums and
// operands have the same layout.
template <class T>
PRIMUS_DEVICE Operand<T> to_left(const Accumulator& sums) {
  Operand<T> result;
  PRIMUS_UNROLL
  for (int i = 0; i < kPerLane; ++i) result.at[i] = from_float<T>(sums.at[i]);
  return result;
}

}  // namespace primus::turbo::PRIMUS_GPU
