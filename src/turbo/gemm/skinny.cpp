#include "turbo/gemm/skinny.h"

#include <immintrin.h>

#include <algorithm>

#include "tensor/bfloat16.h"
#include "turbo/gemm/cpu_features.h"
#include "turbo/gemm/kernel.h"

namespace primus::turbo::gemm {
namespace {

constexpr std::int64_t kPadding = 16;  // number of lanes of the widest vector
constexpr std::int64_t kAlignment = 64;

struct SkinnyCall {
  const float* x;  // [m, x_ld], zero-padded
  std::int64_t x_ld;
  const void* w;  // [n, k]
  std::int64_t w_ld, k, m;
  void* y;
  std::int64_t y_ld;
  bool accumulate;
  // Reads products [m, count] from columns [n, n + count) of y. Set if sums begin with these values.
  void (*load)(const SkinnyCall& call, std::int64_t n, int count, float* products);
  // Adds products [m, count] to columns [n, n + count) of y, or stores them there.
  void (*store)(const SkinnyCall& call, std::int64_t n, int count, const float* products);
};

template <class C>
void load(const SkinnyCall& call, std::int64_t n, int count, float* products) {
  for (std::int64_t m = 0; m < call.m; ++m) {
    const C* y = static_cast<const C*>(call.y) + m * call.y_ld + n;
    for (int i = 0; i < count; ++i) products[m * count + i] = static_cast<float>(y[i]);
  }
}

template <class C>
void store(const SkinnyCall& call, std::int64_t n, int count, const float* products) {
  for (std::int64_t m = 0; m < call.m; ++m) {
    C* y = static_cast<C*>(call.y) + m * call.y_ld + n;
    for (int i = 0; i < count; ++i) {
      const float product = products[m * count + i];
      y[i] = C(call.accumulate ? static_cast<float>(y[i]) + product : product);
    }
  }
}

namespace baseline {

struct Vector {
  using Type = __m128;
  static constexpr int kLanes = 4;
  static Type zero() { return _mm_setzero_ps(); }
  static Type load(const float* p) { return _mm_loadu_ps(p); }
  static Type load(const BFloat16* p) {
    const __m128i half = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), half));
  }
  static Type add_product(Type a, Type b, Type sum) { return _mm_add_ps(sum, _mm_mul_ps(a, b)); }
  static Type broadcast(float x) { return _mm_set1_ps(x); }
  static void store(float* p, Type v) { _mm_storeu_ps(p, v); }
  // Replaces the rows of a square of lanes by its columns.
  static void transpose(Type (&v)[kLanes]) { _MM_TRANSPOSE4_PS(v[0], v[1], v[2], v[3]); }
  static float sum(Type v) {
    const __m128 pairs = _mm_add_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_add_ss(pairs, _mm_shuffle_ps(pairs, pairs, 1)));
  }
};

#include "turbo/gemm/skinny_kernel.inl"

}  // namespace baseline

#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {

struct Vector {
  using Type = __m256;
  static constexpr int kLanes = 8;
  static Type zero() { return _mm256_setzero_ps(); }
  static Type load(const float* p) { return _mm256_loadu_ps(p); }
  static Type load(const BFloat16* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  static Type add_product(Type a, Type b, Type sum) { return _mm256_fmadd_ps(a, b, sum); }
  static Type broadcast(float x) { return _mm256_set1_ps(x); }
  static void store(float* p, Type v) { _mm256_storeu_ps(p, v); }
  static void transpose(Type (&v)[kLanes]) {
    Type pairs[kLanes], fours[kLanes];
    for (int i = 0; i < kLanes; i += 2) {
      pairs[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
      pairs[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    for (int i = 0; i < kLanes; i += 4) {
      for (int half = 0; half < 2; ++half) {
        fours[i + 2 * half] = _mm256_shuffle_ps(pairs[i + half], pairs[i + half + 2], 0x44);
        fours[i + 2 * half + 1] = _mm256_shuffle_ps(pairs[i + half], pairs[i + half + 2], 0xee);
      }
    }
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
      v[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
    }
  }
  static float sum(Type v) {
    return baseline::Vector::sum(_mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)));
  }
};

#include "turbo/gemm/skinny_kernel.inl"

}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")
namespace avx512 {

struct Vector {
  using Type = __m512;
  static constexpr int kLanes = 16;
  static Type zero() { return _mm512_setzero_ps(); }
  static Type load(const float* p) { return _mm512_loadu_ps(p); }
  static Type load(const BFloat16* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static Type add_product(Type a, Type b, Type sum) { return _mm512_fmadd_ps(a, b, sum); }
  static Type broadcast(float x) { return _mm512_set1_ps(x); }
  static void store(float* p, Type v) { _mm512_storeu_ps(p, v); }
  static void transpose(Type (&v)[kLanes]) {
    Type pairs[kLanes], fours[kLanes], eights[kLanes];
    for (int i = 0; i < kLanes; i += 2) {
      pairs[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
      pairs[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
    }
    for (int i = 0; i < kLanes; i += 4) {
      for (int half = 0; half < 2; ++half) {
        fours[i + 2 * half] = _mm512_shuffle_ps(pairs[i + half], pairs[i + half + 2], 0x44);
        fours[i + 2 * half + 1] = _mm512_shuffle_ps(pairs[i + half], pairs[i + half + 2], 0xee);
      }
    }
    // fours[4 r + c] has, in its 128-bit lane l, column 4 l + c of rows 4 r to 4 r + 3.
    for (int c = 0; c < 4; ++c) {
      for (int r = 0; r < 2; ++r) {
        eights[8 * r + c] = _mm512_shuffle_f32x4(fours[8 * r + c], fours[8 * r + 4 + c], 0x88);
        eights[8 * r + 4 + c] = _mm512_shuffle_f32x4(fours[8 * r + c], fours[8 * r + 4 + c], 0xdd);
      }
    }
    for (int c = 0; c < 4; ++c) {
      v[c] = _mm512_shuffle_f32x4(eights[c], eights[8 + c], 0x88);
      v[8 + c] = _mm512_shuffle_f32x4(eights[c], eights[8 + c], 0xdd);
      v[4 + c] = _mm512_shuffle_f32x4(eights[4 + c], eights[12 + c], 0x88);
      v[12 + c] = _mm512_shuffle_f32x4(eights[4 + c], eights[12 + c], 0xdd);
    }
  }
  static float sum(Type v) { return _mm512_reduce_add_ps(v); }
};

#include "turbo/gemm/skinny_kernel.inl"

}  // namespace avx512
#pragma GCC pop_options

using Columns = void (*)(const SkinnyCall&, std::int64_t, std::int64_t);

template <bool kInOrder>
Columns columns_function(VectorLevel level, DType dtype) {
  const bool f32 = dtype == DType::kF32;
  switch (level) {
    case VectorLevel::kAvx512:
      return f32 ? avx512::columns_of<float, kInOrder> : avx512::columns_of<BFloat16, kInOrder>;
    case VectorLevel::kAvx2:
      return f32 ? avx2::columns_of<float, kInOrder> : avx2::columns_of<BFloat16, kInOrder>;
    case VectorLevel::kBaseline:
      break;
  }
  return f32 ? baseline::columns_of<float, kInOrder> : baseline::columns_of<BFloat16, kInOrder>;
}

template <class T>
void widen_a(const GemmArgs& g, float* to, std::int64_t to_ld) {
  for (std::int64_t m = 0; m < g.m; ++m) {
    const T* row = static_cast<const T*>(g.a) + (g.rows.a ? g.rows.a[m] : m) * g.lda;
    for (std::int64_t i = 0; i < g.k; ++i) to[m * to_ld + i] = static_cast<float>(row[i]);
    std::fill(to + m * to_ld + g.k, to + (m + 1) * to_ld, 0.0F);
  }
}

}  // namespace

VectorLevel best_vector_level() {
  if (cpu_features().avx512) return VectorLevel::kAvx512;
  return cpu_features().avx2_fma ? VectorLevel::kAvx2 : VectorLevel::kBaseline;
}

std::size_t skinny_workspace_bytes(const GemmArgs& g) {
  return static_cast<std::size_t>(g.m * round_up(g.k, kPadding) * 4 + kAlignment);
}

void multiply_skinny(ThreadPool& pool, const GemmArgs& g, VectorLevel level) {
  auto* const x =
      reinterpret_cast<float*>(round_up(reinterpret_cast<std::intptr_t>(g.workspace), kAlignment));
  const std::int64_t x_ld = round_up(g.k, kPadding);
  (g.ab_dtype == DType::kF32 ? widen_a<float> : widen_a<BFloat16>)(g, x, x_ld);

  const SkinnyCall call{.x = x,
                        .x_ld = x_ld,
                        .w = g.b,
                        .w_ld = g.ldb,
                        .k = g.k,
                        .m = g.m,
                        .y = g.c,
                        .y_ld = g.ldc,
                        .accumulate = g.accumulate,
                        .load = g.c_dtype == DType::kF32 ? load<float> : load<BFloat16>,
                        .store = g.c_dtype == DType::kF32 ? store<float> : store<BFloat16>};
  const Columns columns = g.row_invariant ? columns_function<true>(level, g.ab_dtype)
                                          : columns_function<false>(level, g.ab_dtype);
  // Each task reads at least 32 KiB of W. For smaller tasks, waking a thread takes longer than the task.
  const std::int64_t minimum = ceil_div(std::int64_t{32} << 10, g.k * size_of(g.ab_dtype));
  const std::int64_t grain = round_up(std::max(minimum, ceil_div(g.n, 8 * pool.size())), kPadding);
  pool.parallel_for(g.n, grain,
                    [&](std::int64_t begin, std::int64_t end, int) { columns(call, begin, end); });
}

}  // namespace primus::turbo::gemm
