// Tiles of 16 x 16 as a warp holds them: sums, and operands of bf16 and fp16 (mma.h).
// How elements lie in lanes is told by Accumulator::row and col; code outside this file and mma.h must not
// know more.
#pragma once

#include "turbo/gpu/values.h"

namespace primus::turbo::PRIMUS_GPU {

constexpr int kTile = 16;
// Elements of a tile that a lane holds.
constexpr int kPerLane = kTile * kTile / kWarp;

// A tile of sums. With warps of 32, lane l holds rows l/4 and l/4 + 8, columns 2 (l%4) + {0, 1, 8, 9}; with
// warps of 64, rows 4 (l/16) + {0, 1, 2, 3} of column l%16.
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

  // Rows that a lane has elements of, and which of them element i belongs to.
  static constexpr int kRows = kWarp == 32 ? 2 : 4;
  PRIMUS_DEVICE static constexpr int slot(int i) { return kWarp == 32 ? i / 2 % 2 : i; }
  PRIMUS_DEVICE static int row_of_slot(int slot) {
    if constexpr (kWarp == 32) return lane() / 4 + slot * 8;
    return lane() / 16 * 4 + slot;
  }
};

// Combines values of the lanes that share rows; all of them get the result.
template <class Combine>
PRIMUS_DEVICE float reduce_row(float value, Combine combine) {
  constexpr int kLanes = kWarp == 32 ? 4 : 16;
  PRIMUS_UNROLL
  for (int mask = 1; mask < kLanes; mask *= 2) value = combine(value, from_lane_xor(value, mask));
  return value;
}

// ---- bf16 and fp16 ------------------------------------------------------------------------------

// A lane's part of an operand tile: of rows and of the dimension that is summed over.
template <class T>
struct Operand {
  static_assert(sizeof(T) == 2);
  T at[kPerLane];

  // Which element of the tile this lane's element i is. Left operands (A) and right ones (B) differ only in
  // where the halves of a 16-row tile go.
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

// The tile whose element (row, k) is tile[row * step + k], or, transposed, tile[k * step + row]. The tile's
// rows in memory start on 16 bytes.
#if defined(__CUDACC__) && !defined(__HIP__)

// Four 8 x 8 matrices by one instruction: lane l names row l % 8 of matrix l / 8.
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

// Rows of 32 columns as a lane reads them from global memory, 16 bytes of each of its rows: operands of two
// products with no way through shared memory. The columns come in another order, which is the same one in
// left and right stripes, and a sum does not mind.
struct Stripe {
  static constexpr int kCols = 32;
  static constexpr int kProducts = kCols / kTile;
  static constexpr int kRows = kWarp == 32 ? 2 : 1;  // of the tile that a lane has

  Bytes16 of_row[kRows];

  PRIMUS_DEVICE static int row(int i) { return kWarp == 32 ? lane() / 4 + i * 8 : lane() % 16; }
  PRIMUS_DEVICE static int col() { return (kWarp == 32 ? lane() % 4 : lane() / 16) * 8; }

  // Elements by pairs: which word of which row.
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

// With warps of 32, sums lie in lanes as a left operand does: no way through memory.
template <class T>
PRIMUS_DEVICE Operand<T> to_left(const Accumulator& sums) {
  Operand<T> result;
  PRIMUS_UNROLL
  for (int i = 0; i < kPerLane; ++i) result.at[i] = from_float<T>(sums.at[i]);
  return result;
}

}  // namespace primus::turbo::PRIMUS_GPU
