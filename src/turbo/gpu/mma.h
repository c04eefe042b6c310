// Products of 16 x 16 tiles by one warp: C[16, 16] += A[16, 16] · B[16, 16]ᵀ, with fp32 accumulation.
//
// For bf16 and fp16 these are the matrix units: mma.sync on NVIDIA (sm_80 and later), MFMA on AMD (gfx90a,
// gfx942), and a plain product in the emulator, which hands elements to lanes in the same order as the
// hardware it stands for. For fp32 they are ordinary multiply-adds on operands that stay in shared memory,
// exact to fp32.
//
// How elements lie in lanes is told by Accumulator::row and col; code outside this file must not know more.
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

// With kHalves = 1 only columns 0 to 7 of c are wanted, and the others may get anything or nothing.
#if defined(__HIP__)

template <int kHalves = 2, class T>
PRIMUS_DEVICE void multiply(Accumulator& c, const Operand<T>& a, const Operand<T>& b) {
#if defined(__HIP_DEVICE_COMPILE__)
  typedef float Sums __attribute__((ext_vector_type(4)));
  Sums sums;
  if constexpr (std::is_same_v<T, Float16>) {
    typedef _Float16 Four __attribute__((ext_vector_type(4)));
    sums = __builtin_amdgcn_mfma_f32_16x16x16f16(std::bit_cast<Four>(a), std::bit_cast<Four>(b),
                                                 std::bit_cast<Sums>(c), 0, 0, 0);
  } else {
    typedef short Four __attribute__((ext_vector_type(4)));
    sums = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(std::bit_cast<Four>(a), std::bit_cast<Four>(b),
                                                     std::bit_cast<Sums>(c), 0, 0, 0);
  }
  c = std::bit_cast<Accumulator>(sums);
#endif
}

#elif defined(__CUDACC__)

// a: 16 x 16; two halves of b's rows, 8 each, of which kHalves are asked for.
template <int kHalves = 2, class T>
PRIMUS_DEVICE void multiply(Accumulator& c, const Operand<T>& a, const Operand<T>& b) {
#if PRIMUS_CUDA_ARCH >= 800
  const auto* x = reinterpret_cast<const std::uint32_t*>(a.at);
  const auto* y = reinterpret_cast<const std::uint32_t*>(b.at);
  PRIMUS_UNROLL
  for (int half = 0; half < kHalves; ++half) {
    float* sums = c.at + half * 4;
    if constexpr (std::is_same_v<T, Float16>) {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
          "{%0,%1,%2,%3};"
          : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
          : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[half * 2]), "r"(y[half * 2 + 1]));
    } else {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
          "{%0,%1,%2,%3};"
          : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
          : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[half * 2]), "r"(y[half * 2 + 1]));
    }
  }
#endif
}

#else

// Collects both tiles from all lanes, and multiplies.
template <int kHalves = 2, class T>
void multiply(Accumulator& c, const Operand<T>& a, const Operand<T>& b) {
  struct Both {
    Operand<T> a, b;
  } mine{a, b};
  const std::byte* all = gpu::emulator::exchange(&mine, sizeof(mine));
  const auto of_lane = [&](int lane) -> const Both& {
    return *reinterpret_cast<const Both*>(all +
                                          static_cast<std::size_t>(lane) * gpu::emulator::kExchangeBytes);
  };
  // The lane and index of element (row, k): the inverse of left_row, left_k, right_row and right_k.
  const auto left = [&](int row, int k) {
    if constexpr (kWarp == 32)
      return to_float(of_lane(row % 8 * 4 + k % 8 / 2).a.at[k % 2 + row / 8 * 2 + k / 8 * 4]);
    return to_float(of_lane(row + k / 4 * 16).a.at[k % 4]);
  };
  const auto right = [&](int row, int k) {
    if constexpr (kWarp == 32)
      return to_float(of_lane(row % 8 * 4 + k % 8 / 2).b.at[k % 2 + k / 8 * 2 + row / 8 * 4]);
    return to_float(of_lane(row + k / 4 * 16).b.at[k % 4]);
  };
  // This lane's elements share rows and columns: each of those is collected once.
  float rows[Accumulator::kRows][kTile], cols[kPerLane][kTile];
  for (int slot = 0; slot < Accumulator::kRows; ++slot) {
    for (int k = 0; k < kTile; ++k) rows[slot][k] = left(Accumulator::row_of_slot(slot), k);
  }
  for (int i = 0; i < kPerLane; ++i) {
    int same = 0;
    while (Accumulator::col(same) != Accumulator::col(i)) ++same;
    if (same == i) {
      for (int k = 0; k < kTile; ++k) cols[i][k] = right(Accumulator::col(i), k);
    }
    for (int k = 0; k < kTile; ++k) c.at[i] += rows[Accumulator::slot(i)][k] * cols[same][k];
  }
}

#endif

// ---- fp32 ---------------------------------------------------------------------------------------

template <>
struct Operand<float> {
  const float* tile;
  int row_step, k_step;
};
template <bool kTransposed>
PRIMUS_DEVICE Operand<float> load_left(const float* tile, int step) {
  return {tile, kTransposed ? 1 : step, kTransposed ? step : 1};
}
template <bool kTransposed>
PRIMUS_DEVICE Operand<float> load_right(const float* tile, int step) {
  return {tile, kTransposed ? 1 : step, kTransposed ? step : 1};
}
PRIMUS_DEVICE void multiply(Accumulator& c, const Operand<float>& a, const Operand<float>& b) {
  PRIMUS_UNROLL
  for (int i = 0; i < kPerLane; ++i) {
    const float* x = a.tile + Accumulator::row(i) * a.row_step;
    const float* y = b.tile + Accumulator::col(i) * b.row_step;
    float sum = c.at[i];
    PRIMUS_UNROLL
    for (int k = 0; k < kTile; ++k) sum = multiply_add(x[k * a.k_step], y[k * b.k_step], sum);
    c.at[i] = sum;
  }
}

}  // namespace primus::turbo::PRIMUS_GPU
