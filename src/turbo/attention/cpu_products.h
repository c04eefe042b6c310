// The small matrix products inside an attention tile, in fp32, with operands that lie in L1 or L2.
//
// C[m, n] = (C +) A[m, k] · B[k, n]: rows of B and C are contiguous, padded to whole vectors; elements of A
// are broadcast, so A may lie in memory any way round. A register block of kRowBlock x kVectorBlock
// accumulators keeps both FMA units busy.
#pragma once

#include <immintrin.h>

#include "turbo/cpu/simd.h"

namespace primus::turbo::PRIMUS_CPU_ISA {

#if defined(__AVX512F__)
using Vector = __m512;
constexpr int kLanes = 16, kRowBlock = 6, kVectorBlock = 4;
PRIMUS_INLINE Vector load(const float* p) { return _mm512_loadu_ps(p); }
PRIMUS_INLINE void store(float* p, Vector x) { _mm512_storeu_ps(p, x); }
PRIMUS_INLINE Vector broadcast(float x) { return _mm512_set1_ps(x); }
PRIMUS_INLINE Vector multiply_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
#elif defined(__AVX2__)
using Vector = __m256;
constexpr int kLanes = 8, kRowBlock = 6, kVectorBlock = 2;
PRIMUS_INLINE Vector load(const float* p) { return _mm256_loadu_ps(p); }
PRIMUS_INLINE void store(float* p, Vector x) { _mm256_storeu_ps(p, x); }
PRIMUS_INLINE Vector broadcast(float x) { return _mm256_set1_ps(x); }
PRIMUS_INLINE Vector multiply_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
#else
using Vector = __m128;
constexpr int kLanes = 4, kRowBlock = 4, kVectorBlock = 2;
PRIMUS_INLINE Vector load(const float* p) { return _mm_loadu_ps(p); }
PRIMUS_INLINE void store(float* p, Vector x) { _mm_storeu_ps(p, x); }
PRIMUS_INLINE Vector broadcast(float x) { return _mm_set1_ps(x); }
PRIMUS_INLINE Vector multiply_add(Vector a, Vector b, Vector c) { return _mm_add_ps(_mm_mul_ps(a, b), c); }
#endif

// n rounded up to whole vectors.
constexpr std::int64_t padded(std::int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// Element (i, p) of A is data[i * row + p * column].
struct LeftOperand {
  const float* data;
  std::int64_t row, column;
};

template <int kRows, int kVectors, bool kAccumulate>
PRIMUS_INLINE void product_block(std::int64_t k, LeftOperand a, const float* b, std::int64_t ldb, float* c,
                                 std::int64_t ldc) {
  Vector sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) sum[i][j] = broadcast(0.0F);
  }
  for (std::int64_t p = 0; p < k; ++p) {
    Vector right[kVectors];
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) right[j] = load(b + p * ldb + j * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const Vector left = broadcast(a.data[i * a.row + p * a.column]);
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) sum[i][j] = multiply_add(left, right[j], sum[i][j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      float* out = c + i * ldc + j * kLanes;
      // Adding a whole product at a time keeps chains of additions short, and so their rounding errors small.
      store(out, kAccumulate ? load(out) + sum[i][j] : sum[i][j]);
    }
  }
}

template <int kRows, int kVectors, bool kAccumulate>
void product_rows(std::int64_t m, std::int64_t k, LeftOperand a, const float* b, std::int64_t ldb, float* c,
                  std::int64_t ldc) {
  for (; m >= kRows; m -= kRows, a.data += kRows * a.row, c += kRows * ldc) {
    product_block<kRows, kVectors, kAccumulate>(k, a, b, ldb, c, ldc);
  }
  if constexpr (kRows > 1) {
    if (m > 0) product_rows<kRows - 1, kVectors, kAccumulate>(m, k, a, b, ldb, c, ldc);
  }
}

template <int kVectors, bool kAccumulate>
void product_columns(std::int64_t m, std::int64_t n, std::int64_t k, LeftOperand a, const float* b,
                     std::int64_t ldb, float* c, std::int64_t ldc) {
  constexpr int kWidth = kVectors * kLanes;
  for (; n >= kWidth; n -= kWidth, b += kWidth, c += kWidth) {
    product_rows<kRowBlock, kVectors, kAccumulate>(m, k, a, b, ldb, c, ldc);
  }
  if constexpr (kVectors > 1) {
    if (n > 0) product_columns<kVectors - 1, kAccumulate>(m, n, k, a, b, ldb, c, ldc);
  }
}

// n is a multiple of kLanes.
inline void multiply(std::int64_t m, std::int64_t n, std::int64_t k, LeftOperand a, const float* b,
                     std::int64_t ldb, float* c, std::int64_t ldc) {
  product_columns<kVectorBlock, false>(m, n, k, a, b, ldb, c, ldc);
}
inline void multiply_accumulate(std::int64_t m, std::int64_t n, std::int64_t k, LeftOperand a, const float* b,
                                std::int64_t ldb, float* c, std::int64_t ldc) {
  product_columns<kVectorBlock, true>(m, n, k, a, b, ldb, c, ldc);
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
