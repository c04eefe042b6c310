#include "turbo/attention/cpu_fp32_products.h"

#include <immintrin.h>

#include <algorithm>

#include "turbo/cpu/simd.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// kSums: the number of accumulators. This number keeps both multipliers busy, and the accumulators fit into
// the registers together with the operands.
#if defined(__AVX512F__)
using Vector = __m512;
constexpr int kSums = 24, kMaxVectors = 4;
PRIMUS_INLINE Vector load(const float* p) { return _mm512_loadu_ps(p); }
PRIMUS_INLINE void store(float* p, Vector x) { _mm512_storeu_ps(p, x); }
PRIMUS_INLINE Vector broadcast(float x) { return _mm512_set1_ps(x); }
PRIMUS_INLINE Vector fused(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
#elif defined(__AVX2__)
using Vector = __m256;
constexpr int kSums = 12, kMaxVectors = 2;
PRIMUS_INLINE Vector load(const float* p) { return _mm256_loadu_ps(p); }
PRIMUS_INLINE void store(float* p, Vector x) { _mm256_storeu_ps(p, x); }
PRIMUS_INLINE Vector broadcast(float x) { return _mm256_set1_ps(x); }
PRIMUS_INLINE Vector fused(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
#else
using Vector = __m128;
constexpr int kSums = 8, kMaxVectors = 2;
PRIMUS_INLINE Vector load(const float* p) { return _mm_loadu_ps(p); }
PRIMUS_INLINE void store(float* p, Vector x) { _mm_storeu_ps(p, x); }
PRIMUS_INLINE Vector broadcast(float x) { return _mm_set1_ps(x); }
PRIMUS_INLINE Vector fused(Vector a, Vector b, Vector c) { return _mm_add_ps(_mm_mul_ps(a, b), c); }
#endif
static_assert(sizeof(Vector) == kFp32Lanes * sizeof(float));

constexpr int max_rows(int vectors) { return std::min(kSums / vectors, 12); }

struct Operands {
  std::int64_t k;
  LeftOperand a;
  const float* b;
  std::int64_t ldb;
  float* c;
  std::int64_t ldc;
};

template <int kRows, int kVectors, bool kAccumulate>
PRIMUS_INLINE void product_block(const Operands& x) {
  Vector sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) sum[i][j] = broadcast(0.0F);
  }
  for (std::int64_t p = 0; p < x.k; ++p) {
    Vector right[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) right[j] = load(x.b + p * x.ldb + j * kFp32Lanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Vector left = broadcast(x.a.data[i * x.a.row + p * x.a.column]);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sum[i][j] = fused(left, right[j], sum[i][j]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      float* out = x.c + i * x.ldc + j * kFp32Lanes;
      store(out, kAccumulate ? load(out) + sum[i][j] : sum[i][j]);
    }
  }
}

template <int kRows, int kVectors, bool kAccumulate>
void product_rows(std::int64_t m, Operands x) {
  for (; m >= kRows; m -= kRows, x.a.data += kRows * x.a.row, x.c += kRows * x.ldc) {
    product_block<kRows, kVectors, kAccumulate>(x);
  }
  if constexpr (kRows > 1) {
    if (m > 0) product_rows<kRows - 1, kVectors, kAccumulate>(m, x);
  }
}

template <int kVectors, bool kAccumulate>
void product(std::int64_t m, std::int64_t n, Operands x) {
  constexpr int kWidth = kVectors * kFp32Lanes;
  for (; n >= kWidth; n -= kWidth, x.b += kWidth, x.c += kWidth) {
    product_rows<max_rows(kVectors), kVectors, kAccumulate>(m, x);
  }
  if constexpr (kVectors > 1) {
    if (n > 0) product<kVectors - 1, kAccumulate>(m, n, x);
  }
}

}  // namespace

void multiply(std::int64_t m, std::int64_t n, std::int64_t k, LeftOperand a, const float* b, std::int64_t ldb,
              float* c, std::int64_t ldc) {
  product<kMaxVectors, false>(m, n, {k, a, b, ldb, c, ldc});
}

void multiply_accumulate(std::int64_t m, std::int64_t n, std::int64_t k, LeftOperand a, const float* b,
                         std::int64_t ldb, float* c, std::int64_t ldc) {
  product<kMaxVectors, true>(m, n, {k, a, b, ldb, c, ldc});
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
