#include <emmintrin.h>

#include <algorithm>
#include <cstring>

#include "tensor/bfloat16.h"
#include "turbo/gemm/pack.h"

// The 128-bit vectors of the baseline instruction set are fast enough for packing, because fp32 products take
// dozens of cycles per packed element.
namespace primus::turbo::gemm {
namespace {

inline __m128 load4(const float* p) { return _mm_loadu_ps(p); }
inline __m128 load4(const BFloat16* p) {
  const __m128i half = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), half));
}

// to[i][j] = from[i][j] for i < rows, j < cols; zero up to [block_rows, block_cols].
template <class Rows>
void copy_block(Rows from, float* to, std::int64_t to_ld, std::int64_t rows, std::int64_t cols,
                std::int64_t block_rows, std::int64_t block_cols) {
  for (std::int64_t i = 0; i < block_rows; ++i) {
    const std::int64_t valid = i < rows ? cols : 0;
    std::int64_t j = 0;
    for (; j + 4 <= valid; j += 4) _mm_storeu_ps(to + i * to_ld + j, load4(from[i] + j));
    for (; j < valid; ++j) to[i * to_ld + j] = static_cast<float>(from[i][j]);
    std::fill(to + i * to_ld + j, to + i * to_ld + block_cols, 0.0F);
  }
}

// to[j][i] = from[i][j] for i < rows, j < cols; zero up to [block_cols, block_rows]. Block sizes are
// multiples of 4.
template <class Rows>
void transpose_block(Rows from, float* to, std::int64_t to_ld, std::int64_t rows, std::int64_t cols,
                     std::int64_t block_rows, std::int64_t block_cols) {
  for (std::int64_t i = 0; i < block_rows; i += 4) {
    for (std::int64_t j = 0; j < block_cols; j += 4) {
      if (i + 4 <= rows && j + 4 <= cols) {
        __m128 r0 = load4(from[i] + j), r1 = load4(from[i + 1] + j), r2 = load4(from[i + 2] + j),
               r3 = load4(from[i + 3] + j);
        _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
        float* q = to + j * to_ld + i;
        _mm_storeu_ps(q, r0);
        _mm_storeu_ps(q + to_ld, r1);
        _mm_storeu_ps(q + 2 * to_ld, r2);
        _mm_storeu_ps(q + 3 * to_ld, r3);
        continue;
      }
      for (std::int64_t x = i; x < i + 4; ++x) {
        for (std::int64_t y = j; y < j + 4; ++y) {
          to[y * to_ld + x] = x < rows && y < cols ? static_cast<float>(from[x][y]) : 0.0F;
        }
      }
    }
  }
}

// Calls block(first row or column of the strip, number of rows or columns, first k, number of k, packed
// block) for every block of every strip.
template <int kWidth, int kBlock, class Function>
void for_each_block(const PackCall& call, Function block) {
  // k is the outer loop: adjacent strips of a k-strided source read the same rows, and the pages of these
  // rows stay in the TLB.
  for (std::int64_t k = 0; k < call.k; k += kBlock) {
    for (int s = 0; s < call.strips; ++s) {
      char* packed = static_cast<char*>(call.packed) + s * call.strip_bytes;
      const std::int64_t width = std::clamp<std::int64_t>(call.extent - std::int64_t{s} * kWidth, 0, kWidth);
      block(std::int64_t{s} * kWidth, width, k, std::min<std::int64_t>(kBlock, call.k - k),
            reinterpret_cast<float*>(packed) + k * kWidth);
    }
  }
}

// kTranspose is false if strips have the layout of the source: if k runs along a row for A, and across rows
// for B.
template <class T, int kWidth, int kKb, bool kContiguous, bool kTranspose>
void pack(const PackCall& call) {
  constexpr std::int64_t kRows = kContiguous ? kWidth : kKb, kCols = kContiguous ? kKb : kWidth;
  with_rows<T>(call, kContiguous ? call.extent : call.k, [&](auto source) {
    for_each_block<kWidth, kKb>(
        call, [&](std::int64_t at, std::int64_t width, std::int64_t k, std::int64_t ks, float* to) {
          const auto from = kContiguous ? source.at(at, k) : source.at(k, at);
          const std::int64_t rows = kContiguous ? width : ks, cols = kContiguous ? ks : width;
          if constexpr (kTranspose) {
            transpose_block(from, to, kRows, rows, cols, kRows, kCols);
          } else {
            copy_block(from, to, kCols, rows, cols, kRows, kCols);
          }
        });
  });
}

template <class T, int kMr, int kNr, int kKb>
OperandPackers packers() {
  return {{pack<T, kMr, kKb, true, false>, pack<T, kMr, kKb, false, true>},
          {pack<T, kNr, kKb, true, true>, pack<T, kNr, kKb, false, false>}};
}

}  // namespace

OperandPackers f32_packers_64x64x64(DType source) {
  return source == DType::kF32 ? packers<float, 64, 64, 64>() : packers<BFloat16, 64, 64, 64>();
}

OperandPackers f32_packers_4x8x64(DType source) {
  return source == DType::kF32 ? packers<float, 4, 8, 64>() : packers<BFloat16, 4, 8, 64>();
}

}  // namespace primus::turbo::gemm
