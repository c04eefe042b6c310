// Products of 16 x 16 tiles by one warp: C[16, 16] += A[16, 16] · B[16, 16]ᵀ, with fp32 accumulation.
//
// bf16 and fp16 use the matrix units: mma.sync on NVIDIA (sm_80 and later), MFMA on AMD (gfx90a, gfx942). The
// emulator computes a plain product and distributes elements over lanes in the same way as the hardware. fp32
// products use ordinary multiply-adds on operands in shared memory.
//
// mma_operands.h defines the tiles.
#pragma once

#include "turbo/gpu/mma_operands.h"

namespace primus::turbo::PRIMUS_GPU {

// ---- bf16 and fp16 ------------------------------------------------------------------------------

// With kHalves = 1 and warps of 32, only columns 0 to 7 of c are computed; columns 8 to 15 are undefined.
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

// a is 16 x 16. b consists of two halves of 8 rows; the first kHalves of these halves are multiplied.
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

// Gathers the tiles of both operands from all lanes, and multiplies them.
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
  // The inverse of left_row, left_k, right_row and right_k: finds the lane and the index of element (row, k).
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
  // With 32 lanes, a lane's last elements are those in columns 8 to 15, which only two halves need.
  constexpr int kComputed = kWarp == 32 ? kPerLane / 2 * kHalves : kPerLane;
  // A lane's elements are in few rows and columns. The loops gather each of these rows and columns once. They
  // are unrolled, so that the positions of elements are constants, because emulated products take most of
  // their time in these loops.
  float rows[Accumulator::kRows][kTile], cols[kComputed][kTile];
  for (int slot = 0; slot < Accumulator::kRows; ++slot) {
    const int row = Accumulator::row_of_slot(slot);
#pragma GCC unroll 16
    for (int k = 0; k < kTile; ++k) rows[slot][k] = left(row, k);
  }
  for (int i = 0; i < kComputed; ++i) {
    if (Accumulator::same_col(i) != i) continue;
    const int col = Accumulator::col(i);
#pragma GCC unroll 16
    for (int k = 0; k < kTile; ++k) cols[i][k] = right(col, k);
  }
  // The sums grow concurrently: the next term of a sum waits only for the previous term of the same sum.
  for (int k = 0; k < kTile; ++k) {
#pragma GCC unroll 8
    for (int i = 0; i < kComputed; ++i)
      c.at[i] += rows[Accumulator::slot(i)][k] * cols[Accumulator::same_col(i)][k];
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
