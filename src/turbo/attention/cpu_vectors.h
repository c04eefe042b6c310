// Vector code of the attention kernels: 2^x, and transpositions of fp32 tiles.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <limits>
#include <numbers>

#include "turbo/cpu/simd.h"

namespace primus::turbo::PRIMUS_CPU_ISA {

constexpr float kLog2E = 1.44269504088896341F;

// Returns 2^x within 2 ulp for x <= 127, 0 for x < -125, and NaN for NaN. Softmax uses this function instead
// of exp(). Base 2 costs nothing, because the score scale includes the conversion. exp() would return
// denormal numbers for masked and negligible scores, and CPUs are ten times slower with denormal numbers. The
// polynomial is from exp2f of the Cephes library.
PRIMUS_INLINE float exp2_flushed(float x) {
  const float y = x < -125.0F ? -125.0F : x;
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits; adding 127 more turns the integer
  // into a biased exponent.
  constexpr float kRound = 12582912.0F + 127.0F;
  const float shifted = y + kRound;
  const float r = y - (shifted - kRound);
  float p = 1.535336188319500e-4F;
  p = multiply_add(p, r, 1.339887440266574e-3F);
  p = multiply_add(p, r, 9.618437357674640e-3F);
  p = multiply_add(p, r, 5.550332471162809e-2F);
  p = multiply_add(p, r, 2.402264791363012e-1F);
  p = multiply_add(p, r, 6.931472028550421e-1F);
  p = multiply_add(p, r, 1.0F);
  const float power = std::bit_cast<float>(std::bit_cast<std::uint32_t>(shifted) << 23);
  return x < -125.0F ? 0.0F : p * power;
}

// Returns log2 of a positive normal number with an error of 1e-7 * max(1, |result|). x = m 2^e, m in
// [1/sqrt(2), sqrt(2)], with the polynomial for log(m) from logf of the Cephes library. Returns NaN for NaN.
PRIMUS_INLINE float log2_positive(float x) {
  constexpr std::int32_t kSqrtHalf = 0x3f3504f3;
  const std::int32_t offset = std::bit_cast<std::int32_t>(x) - kSqrtHalf;
  const std::int32_t exponent = offset >> 23;
  const float m = std::bit_cast<float>((offset & 0x7fffff) + kSqrtHalf) - 1.0F;
  float p = 7.0376836292e-2F;
  p = multiply_add(p, m, -1.1514610310e-1F);
  p = multiply_add(p, m, 1.1676998740e-1F);
  p = multiply_add(p, m, -1.2420140846e-1F);
  p = multiply_add(p, m, 1.4249322787e-1F);
  p = multiply_add(p, m, -1.6668057665e-1F);
  p = multiply_add(p, m, 2.0000714765e-1F);
  p = multiply_add(p, m, -2.4999993993e-1F);
  p = multiply_add(p, m, 3.3333331174e-1F);
  const float log = m + m * m * multiply_add(p, m, -0.5F);
  const float result = static_cast<float>(exponent) + log * kLog2E;
  return x == x ? result : x;
}

// Returns log(sum of exponentials), given the maximum of base-2 exponents and the sum of 2^(exponent -
// maximum); -infinity for an empty sum.
PRIMUS_INLINE float log_sum_exp2(float max, float sum) {
  const auto log = static_cast<float>((static_cast<double>(max) + static_cast<double>(log2_positive(sum))) *
                                      std::numbers::ln2);
  return sum == 0 ? -std::numeric_limits<float>::infinity() : log;
}

#if defined(__AVX512F__)
constexpr int kTransposeEdge = 16;

// to[j][i] = from[i][j], 16 x 16. One register holds quarters of rows i, i+4, i+8 and i+12, so that all
// further shuffles are within 128 bits.
inline void transpose_block(const float* from, std::int64_t from_ld, float* to, std::int64_t to_ld) {
  for (int quarter = 0; quarter < 4; ++quarter) {
    __m512 part[4];
    for (int i = 0; i < 4; ++i) {
      const float* p = from + i * from_ld + quarter * 4;
      __m512 x = _mm512_castps128_ps512(_mm_loadu_ps(p));
      x = _mm512_insertf32x4(x, _mm_loadu_ps(p + 4 * from_ld), 1);
      x = _mm512_insertf32x4(x, _mm_loadu_ps(p + 8 * from_ld), 2);
      part[i] = _mm512_insertf32x4(x, _mm_loadu_ps(p + 12 * from_ld), 3);
    }
    const __m512d low01 = _mm512_castps_pd(_mm512_unpacklo_ps(part[0], part[1]));
    const __m512d high01 = _mm512_castps_pd(_mm512_unpackhi_ps(part[0], part[1]));
    const __m512d low23 = _mm512_castps_pd(_mm512_unpacklo_ps(part[2], part[3]));
    const __m512d high23 = _mm512_castps_pd(_mm512_unpackhi_ps(part[2], part[3]));
    float* out = to + quarter * 4 * to_ld;
    _mm512_storeu_ps(out, _mm512_castpd_ps(_mm512_unpacklo_pd(low01, low23)));
    _mm512_storeu_ps(out + to_ld, _mm512_castpd_ps(_mm512_unpackhi_pd(low01, low23)));
    _mm512_storeu_ps(out + 2 * to_ld, _mm512_castpd_ps(_mm512_unpacklo_pd(high01, high23)));
    _mm512_storeu_ps(out + 3 * to_ld, _mm512_castpd_ps(_mm512_unpackhi_pd(high01, high23)));
  }
}
#else
constexpr int kTransposeEdge = 4;

inline void transpose_block(const float* from, std::int64_t from_ld, float* to, std::int64_t to_ld) {
  __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + from_ld), c = _mm_loadu_ps(from + 2 * from_ld),
         d = _mm_loadu_ps(from + 3 * from_ld);
  _MM_TRANSPOSE4_PS(a, b, c, d);
  _mm_storeu_ps(to, a);
  _mm_storeu_ps(to + to_ld, b);
  _mm_storeu_ps(to + 2 * to_ld, c);
  _mm_storeu_ps(to + 3 * to_ld, d);
}
#endif

// to[j][i] = from[i][j] for i < rows, j < cols.
inline void transpose(const float* from, std::int64_t from_ld, std::int64_t rows, std::int64_t cols,
                      float* to, std::int64_t to_ld) {
  const std::int64_t whole_rows = rows / kTransposeEdge * kTransposeEdge;
  const std::int64_t whole_cols = cols / kTransposeEdge * kTransposeEdge;
  for (std::int64_t i = 0; i < whole_rows; i += kTransposeEdge) {
    for (std::int64_t j = 0; j < whole_cols; j += kTransposeEdge) {
      transpose_block(from + i * from_ld + j, from_ld, to + j * to_ld + i, to_ld);
    }
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = i < whole_rows ? whole_cols : 0; j < cols; ++j)
      to[j * to_ld + i] = from[i * from_ld + j];
  }
}

// to[r][c] = from[r][c] in fp32, and 0 for cols <= c < ld and rows <= r < padded_rows.
template <class T>
void load_rows(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t cols, float* to,
               std::int64_t ld, std::int64_t padded_rows) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* source = from + r * stride;
    float* row = to + r * ld;
    PRIMUS_SIMD()
    for (std::int64_t c = 0; c < cols; ++c) row[c] = to_float(source[c]);
    for (std::int64_t c = cols; c < ld; ++c) row[c] = 0;
  }
  std::fill(to + rows * ld, to + padded_rows * ld, 0.0F);
}

template <class T>
void store_rows(const float* from, std::int64_t ld, std::int64_t rows, std::int64_t cols, T* to,
                std::int64_t stride) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* row = from + r * ld;
    T* target = to + r * stride;
    PRIMUS_SIMD()
    for (std::int64_t c = 0; c < cols; ++c) target[c] = from_float<T>(row[c]);
  }
}

// to += from.
template <class T>
void add_rows(const float* from, std::int64_t ld, std::int64_t rows, std::int64_t cols, T* to,
              std::int64_t stride) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* row = from + r * ld;
    T* target = to + r * stride;
    PRIMUS_SIMD()
    for (std::int64_t c = 0; c < cols; ++c) target[c] = from_float<T>(to_float(target[c]) + row[c]);
  }
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
