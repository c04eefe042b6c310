// Tile products in fp32, for operands of either type.
//
// An engine of tile products (this one, and Bf16Tiles) packs operands into an order of its own and multiplies
// them. With `lanes` for queries:
//   score      [keys, lanes]  = Left(keys or values) · Right(queries or d_out)
//   transposed [dim, lanes]  += LeftTransposed(values or keys) · RightScores(probabilities or d_scores)
//   by_key     [keys, dim]   += LeftScores(probabilities or d_scores) · Columns(d_out or queries)
// Score tiles and what is summed as [dim, lanes] have rows of kTile floats; what is summed by key lies in
// panels of panel_width(dim) columns, one after the other.
#pragma once

#include <immintrin.h>

#include "turbo/attention/cpu_geometry.h"
#include "turbo/attention/cpu_vectors.h"

namespace primus::turbo::PRIMUS_CPU_ISA {

// ---- The product
// ---------------------------------------------------------------------------------------------------

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

// Element (i, p) of the left operand is data[i * row + p * column]: elements are broadcast, so it may lie in
// memory any way round.
struct LeftOperand {
  const float* data;
  std::int64_t row, column;
};

// C[kRows, kVectors * kLanes] = (C +) A · B: accumulators fill the register file, which keeps both
// multipliers busy.
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

// C[m, n] = (C +) A[m, k] · B[k, n]; n is a multiple of kLanes.
template <bool kAccumulate, int kVectors = kVectorBlock>
void product(std::int64_t m, std::int64_t n, std::int64_t k, LeftOperand a, const float* b, std::int64_t ldb,
             float* c, std::int64_t ldc) {
  constexpr int kWidth = kVectors * kLanes;
  for (; n >= kWidth; n -= kWidth, b += kWidth, c += kWidth) {
    product_rows<kRowBlock, kVectors, kAccumulate>(m, k, a, b, ldb, c, ldc);
  }
  if constexpr (kVectors > 1) {
    if (n > 0) product<kAccumulate, kVectors - 1>(m, n, k, a, b, ldb, c, ldc);
  }
}

// ---- The engine
// ----------------------------------------------------------------------------------------------------

// T: type of the operands in memory.
template <class T>
class Fp32Tiles {
 public:
  using Source = T;
  using Element = float;  // of packed operands

  std::int64_t lane_block() const { return 32; }  // granularity of strips
  std::int64_t key_block() const { return 2; }
  void begin() const {}  // around the products of a work item
  void end() const {}

  // Elements of a packed tile of `dim` columns.
  std::int64_t left_elements(std::int64_t dim) const { return kTile * dim; }
  std::int64_t right_elements(std::int64_t dim) const { return kTile * dim; }
  std::int64_t columns_elements(std::int64_t dim) const { return kTile * panel_width(dim); }
  std::int64_t scores_elements() const { return kTile * kTile; }
  std::int64_t transposed_rows(std::int64_t dim) const { return dim; }
  std::int64_t panel_width(std::int64_t dim) const { return round_up(dim, kLanes); }
  std::int64_t panels(std::int64_t) const { return 1; }

  void pack_left(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t dim, float* to) const {
    load_rows(from, stride, rows, dim, to, dim, kTile);
  }
  // Left operands are read either way round.
  static constexpr bool kLeftIsLeftTransposed = true;
  void pack_left_transposed(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t dim,
                            float* to) const {
    pack_left(from, stride, rows, dim, to);
  }
  void pack_right(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t dim, float* to) const {
    constexpr std::int64_t kChunk =
        64;  // columns at a time, through a buffer that holds any number of rows in L1
    float chunk[kTile * kChunk];
    for (std::int64_t c = 0; c < dim; c += kChunk) {
      const std::int64_t cols = std::min(kChunk, dim - c);
      load_rows(from + c, stride, rows, cols, chunk, kChunk, kTile);
      transpose(chunk, kChunk, kTile, cols, to + c * kTile, kTile);
    }
  }
  void pack_columns(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t dim,
                    float* to) const {
    load_rows(from, stride, rows, dim, to, panel_width(dim), kTile);
  }

  void score(const Strip& strip, std::int64_t dim, const float* left, const float* right,
             float* scores) const {
    product<false>(strip.keys.size(), strip.lanes.size(), dim, {left + strip.keys.begin * dim, dim, 1},
                   right + strip.lanes.begin, kTile, scores + strip.keys.begin * kTile + strip.lanes.begin,
                   kTile);
  }
  void add_transposed(const Strip& strip, std::int64_t dim, const float* left, const float* scores,
                      float* sum) const {
    product<true>(dim, strip.lanes.size(), strip.keys.size(), {left + strip.keys.begin * dim, 1, dim},
                  scores + strip.keys.begin * kTile + strip.lanes.begin, kTile, sum + strip.lanes.begin,
                  kTile);
  }
  // `first_row`: of the tile's keys in `sum`, which has any number of rows.
  void add_by_key(const Strip& strip, std::int64_t dim, const float* scores, const float* columns, float* sum,
                  std::int64_t first_row, std::int64_t) const {
    const std::int64_t width = panel_width(dim);
    product<true>(strip.keys.size(), width, strip.lanes.size(),
                  {scores + strip.keys.begin * kTile + strip.lanes.begin, kTile, 1},
                  columns + strip.lanes.begin * width, width, sum + (first_row + strip.keys.begin) * width,
                  width);
  }

  // Score tiles are packed as they come: [key][lane], for a left and for a right operand alike. put() takes
  // kGroup lanes of two neighbouring keys.
  static constexpr bool kScoresAreLeftAndRight = true;
  PRIMUS_INLINE void put_right(std::int64_t key, std::int64_t lane, const float* even, const float* odd,
                               float* to) const {
    copy_group(even, to + key * kTile + lane);
    copy_group(odd, to + (key + 1) * kTile + lane);
  }
  PRIMUS_INLINE void put_left(std::int64_t key, std::int64_t lane, const float* even, const float* odd,
                              float* to) const {
    put_right(key, lane, even, odd, to);
  }

 private:
  PRIMUS_INLINE static void copy_group(const float* from, float* to) {
    PRIMUS_SIMD()
    for (int i = 0; i < kGroup; ++i) to[i] = from[i];
  }
};

}  // namespace primus::turbo::PRIMUS_CPU_ISA
