#include "turbo/attention/cpu_bf16_products.h"

#if defined(__AVX512BW__)

#include <immintrin.h>

#include "turbo/cpu/simd.h"
#include "turbo/gemm/gemm.h"
#include "turbo/gemm/kernel.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// Calls body(strip of A, strip of B, block of C).
template <class Body>
PRIMUS_INLINE void for_each_block(const Bf16Product& x, Body body) {
  for (std::int64_t i = 0; i < x.row_blocks; ++i) {
    for (std::int64_t j = 0; j < x.col_blocks; ++j) {
      body(x.a + i * x.a_strip, x.b + j * x.b_strip, x.c + i * x.c_rows + j * x.c_cols);
    }
  }
}

// ---- AMX
// -----------------------------------------------------------------------------------------------------------

// Tiles 0-3 are a block of C, 4-5 two tiles of A (16 rows x 32 k), 6-7 two of B (16 pairs of k x 16 columns).
// The instructions are inline assembly because g++ 12's intrinsics do not tell the compiler which memory they
// read.
template <bool kAccumulate>
void amx_multiply(const Bf16Product& x) {
  const std::int64_t c_stride = x.ldc * 4, a_stride = 64, b_stride = 128;
  for_each_block(x, [&](const std::uint16_t* a, const std::uint16_t* b, float* c) {
    float* lower_c = c + 16 * x.ldc;
    if constexpr (kAccumulate) {
      asm volatile(
          "tileloadd (%[c], %[stride]), %%tmm0\n\t"
          "tileloadd 64(%[c], %[stride]), %%tmm1\n\t"
          "tileloadd (%[lower], %[stride]), %%tmm2\n\t"
          "tileloadd 64(%[lower], %[stride]), %%tmm3" ::[c] "r"(c),
          [lower] "r"(lower_c), [stride] "r"(c_stride)
          : "memory");
    } else {
      asm volatile(
          "tilezero %tmm0\n\t"
          "tilezero %tmm1\n\t"
          "tilezero %tmm2\n\t"
          "tilezero %tmm3");
    }
    for (std::int64_t k = 0; k < x.k_blocks; ++k, a += 32 * 32, b += 32 * 32) {
      asm volatile(
          "tileloadd (%[b], %[b_stride]), %%tmm6\n\t"
          "tileloadd (%[a], %[a_stride]), %%tmm4\n\t"
          "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n\t"
          "tileloadd 64(%[b], %[b_stride]), %%tmm7\n\t"
          "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n\t"
          "tileloadd 1024(%[a], %[a_stride]), %%tmm5\n\t"
          "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n\t"
          "tdpbf16ps %%tmm7, %%tmm5, %%tmm3" ::[a] "r"(a),
          [b] "r"(b), [a_stride] "r"(a_stride), [b_stride] "r"(b_stride)
          : "memory");
    }
    asm volatile(
        "tilestored %%tmm0, (%[c], %[stride])\n\t"
        "tilestored %%tmm1, 64(%[c], %[stride])\n\t"
        "tilestored %%tmm2, (%[lower], %[stride])\n\t"
        "tilestored %%tmm3, 64(%[lower], %[stride])" ::[c] "r"(c),
        [lower] "r"(lower_c), [stride] "r"(c_stride)
        : "memory");
  });
}

// ---- AVX-512 BF16
// --------------------------------------------------------------------------------------------------

void nothing() {}

// Multiplies eight rows at a time with 16 accumulators. Each pair of elements of A is broadcast and used in
// two products.
template <bool kAccumulate>
[[gnu::target("avx512bf16")]] void vector_multiply(const Bf16Product& x) {
  constexpr int kRows = 8;
  for (std::int64_t i = 0; i < x.row_blocks; ++i) {
    for (std::int64_t j = 0; j < x.col_blocks; ++j) {
      for (int row = 0; row < kBf16Block; row += kRows) {
        const std::uint16_t* a = x.a + i * x.a_strip + row * kBf16Block;
        const std::uint16_t* b = x.b + j * x.b_strip;
        float* c = x.c + i * x.c_rows + j * x.c_cols + row * x.ldc;
        __m512 sum[kRows][2];
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          sum[r][0] = kAccumulate ? _mm512_loadu_ps(c + r * x.ldc) : _mm512_setzero_ps();
          sum[r][1] = kAccumulate ? _mm512_loadu_ps(c + r * x.ldc + 16) : _mm512_setzero_ps();
        }
        for (std::int64_t k = 0; k < x.k_blocks; ++k, a += kBf16Block * kBf16Block) {
          for (int pair = 0; pair < kBf16Block / 2; ++pair, b += 2 * kBf16Block) {
            const auto left = (__m512bh)_mm512_loadu_si512(b);
            const auto right = (__m512bh)_mm512_loadu_si512(b + kBf16Block);
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
              std::int32_t two;
              __builtin_memcpy(&two, a + r * kBf16Block + 2 * pair, sizeof(two));
              const auto both = (__m512bh)_mm512_set1_epi32(two);
              sum[r][0] = _mm512_dpbf16_ps(sum[r][0], both, left);
              sum[r][1] = _mm512_dpbf16_ps(sum[r][1], both, right);
            }
          }
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          _mm512_storeu_ps(c + r * x.ldc, sum[r][0]);
          _mm512_storeu_ps(c + r * x.ldc + 16, sum[r][1]);
        }
      }
    }
  }
}

}  // namespace

const Bf16Unit* bf16_unit() {
  static constexpr Bf16Unit kAmx{gemm::begin_amx, gemm::end_amx, amx_multiply<false>, amx_multiply<true>};
  static constexpr Bf16Unit kVector{nothing, nothing, vector_multiply<false>, vector_multiply<true>};
  switch (default_gemm_provider(DType::kBF16)) {
    case GemmProvider::kAmx:
      return &kAmx;
    case GemmProvider::kAvx512Bf16:
      return &kVector;
    default:
      return nullptr;
  }
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA

#endif
