#include "turbo/gemm/tile_io.h"

#include <immintrin.h>

#include <cstring>

#include "tensor/bfloat16.h"
#include "turbo/gemm/cpu_features.h"

namespace primus::turbo::gemm {
namespace {

// Rounds each lane to bf16 (nearest even, in integer arithmetic) and sign-extends the result. NaN keeps its
// upper half and becomes a quiet NaN, as in BFloat16.
inline __m128i bf16_bits(__m128 x) {
  const __m128i u = _mm_castps_si128(x);
  const __m128i odd = _mm_and_si128(_mm_srli_epi32(u, 16), _mm_set1_epi32(1));
  const __m128i rounded = _mm_add_epi32(u, _mm_add_epi32(odd, _mm_set1_epi32(0x7fff)));
  const __m128i nan = _mm_castps_si128(_mm_cmpunord_ps(x, x));
  const __m128i quiet = _mm_or_si128(u, _mm_set1_epi32(0x00400000));
  return _mm_srai_epi32(_mm_or_si128(_mm_and_si128(nan, quiet), _mm_andnot_si128(nan, rounded)), 16);
}

template <class C>
void load_any(const TileIo& io) {
  for (int r = 0; r < io.rows; ++r) {
    const C* c = static_cast<const C*>(io.c) + r * io.ldc;
    float* tile = io.tile + r * io.tile_ld;
    for (int j = 0; j < io.cols; ++j) tile[j] = static_cast<float>(c[j]);
  }
}

void store_f32(const TileIo& io) {
  for (int r = 0; r < io.rows; ++r) {
    std::memcpy(static_cast<float*>(io.c) + r * io.ldc, io.tile + r * io.tile_ld,
                static_cast<std::size_t>(io.cols) * sizeof(float));
  }
}

void store_bf16(const TileIo& io) {
  for (int r = 0; r < io.rows; ++r) {
    BFloat16* c = static_cast<BFloat16*>(io.c) + r * io.ldc;
    const float* tile = io.tile + r * io.tile_ld;
    int j = 0;
    for (; j + 8 <= io.cols; j += 8) {
      const __m128i low = bf16_bits(_mm_loadu_ps(tile + j)), high = bf16_bits(_mm_loadu_ps(tile + j + 4));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(c + j), _mm_packs_epi32(low, high));
    }
    for (; j < io.cols; ++j) c[j] = BFloat16(tile[j]);
  }
}

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")

inline __mmask16 mask_of(int lanes) {
  return static_cast<__mmask16>(lanes >= 16 ? 0xffff : (1 << lanes) - 1);
}

// Like bf16_bits(), but for 16 lanes.
inline __m256i to_bf16(__m512 x) {
  const __m512i u = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i result = _mm512_mask_or_epi32(rounded, nan, u, _mm512_set1_epi32(0x00400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(result, 16));
}

void load_f32_avx512(const TileIo& io) {
  for (int r = 0; r < io.rows; ++r) {
    const float* c = static_cast<const float*>(io.c) + r * io.ldc;
    float* tile = io.tile + r * io.tile_ld;
    for (int j = 0; j < io.cols; j += 16) {
      const __mmask16 mask = mask_of(io.cols - j);
      _mm512_mask_storeu_ps(tile + j, mask, _mm512_maskz_loadu_ps(mask, c + j));
    }
  }
}

void store_f32_avx512(const TileIo& io) {
  for (int r = 0; r < io.rows; ++r) {
    float* c = static_cast<float*>(io.c) + r * io.ldc;
    const float* tile = io.tile + r * io.tile_ld;
    for (int j = 0; j < io.cols; j += 16) {
      const __mmask16 mask = mask_of(io.cols - j);
      _mm512_mask_storeu_ps(c + j, mask, _mm512_maskz_loadu_ps(mask, tile + j));
    }
  }
}

void stream_f32_avx512(const TileIo& io) {
  for (int r = 0; r < io.rows; ++r) {
    float* c = static_cast<float*>(io.c) + r * io.ldc;
    const float* tile = io.tile + r * io.tile_ld;
    for (int j = 0; j < io.cols; j += 16) _mm512_stream_ps(c + j, _mm512_loadu_ps(tile + j));
  }
}

void load_bf16_avx512(const TileIo& io) {
  for (int r = 0; r < io.rows; ++r) {
    const BFloat16* c = static_cast<const BFloat16*>(io.c) + r * io.ldc;
    float* tile = io.tile + r * io.tile_ld;
    for (int j = 0; j < io.cols; j += 16) {
      const __mmask16 mask = mask_of(io.cols - j);
      const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, c + j));
      _mm512_mask_storeu_ps(tile + j, mask, _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16)));
    }
  }
}

void store_bf16_avx512(const TileIo& io) {
  for (int r = 0; r < io.rows; ++r) {
    BFloat16* c = static_cast<BFloat16*>(io.c) + r * io.ldc;
    const float* tile = io.tile + r * io.tile_ld;
    for (int j = 0; j < io.cols; j += 16) {
      const __mmask16 mask = mask_of(io.cols - j);
      _mm256_mask_storeu_epi16(c + j, mask, to_bf16(_mm512_maskz_loadu_ps(mask, tile + j)));
    }
  }
}

#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")

void store_bf16_native(const TileIo& io) {
  for (int r = 0; r < io.rows; ++r) {
    BFloat16* c = static_cast<BFloat16*>(io.c) + r * io.ldc;
    const float* tile = io.tile + r * io.tile_ld;
    int j = 0;
    for (; j + 32 <= io.cols; j += 32) {
      const __m512bh pair = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(tile + j + 16), _mm512_loadu_ps(tile + j));
      _mm512_storeu_si512(c + j, reinterpret_cast<__m512i>(pair));
    }
    for (; j < io.cols; j += 16) {
      const __mmask16 mask = mask_of(io.cols - j);
      const __m256bh half = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, tile + j));
      _mm256_mask_storeu_epi16(c + j, mask, reinterpret_cast<__m256i>(half));
    }
  }
}

#pragma GCC pop_options

}  // namespace

TileIoFunctions tile_io() {
  if (cpu_features().avx512) {
    return {load_f32_avx512, store_f32_avx512, load_bf16_avx512, store_bf16_avx512, stream_f32_avx512};
  }
  return {load_any<float>, store_f32, load_any<BFloat16>, store_bf16, nullptr};
}

TileIoFunctions tile_io_avx512_bf16() {
  return {load_f32_avx512, store_f32_avx512, load_bf16_avx512, store_bf16_native, stream_f32_avx512};
}

}  // namespace primus::turbo::gemm
