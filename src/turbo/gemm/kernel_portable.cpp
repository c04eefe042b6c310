#include <emmintrin.h>

#include "turbo/gemm/kernel.h"
#include "turbo/gemm/pack.h"
#include "turbo/gemm/tile_io.h"

namespace primus::turbo::gemm {
namespace {

constexpr int kMr = 4, kNr = 8, kKb = 64;

// Uses eight 128-bit accumulators. The baseline instruction set has sixteen registers, which must also hold
// the operands.
void run(const TileCall& call) {
  const auto* a = static_cast<const float*>(call.a);
  const auto* b = static_cast<const float*>(call.b);
  __m128 low[kMr], high[kMr];  // columns 0-3 and 4-7
  for (int r = 0; r < kMr; ++r) {
    low[r] = call.c_in ? _mm_loadu_ps(call.c_in + r * kNr) : _mm_setzero_ps();
    high[r] = call.c_in ? _mm_loadu_ps(call.c_in + r * kNr + 4) : _mm_setzero_ps();
  }
  for (std::int64_t block = 0; block < call.blocks; ++block) {
    for (int k = 0; k < kKb; ++k) {
      const __m128 b_low = _mm_loadu_ps(b + k * kNr), b_high = _mm_loadu_ps(b + k * kNr + 4);
      for (int r = 0; r < kMr; ++r) {
        const __m128 x = _mm_set1_ps(a[r * kKb + k]);
        low[r] = _mm_add_ps(low[r], _mm_mul_ps(x, b_low));
        high[r] = _mm_add_ps(high[r], _mm_mul_ps(x, b_high));
      }
    }
    a += kMr * kKb;
    b += kKb * kNr;
  }
  for (int r = 0; r < kMr; ++r) {
    _mm_storeu_ps(call.c_out + r * kNr, low[r]);
    _mm_storeu_ps(call.c_out + r * kNr + 4, high[r]);
  }
}

Kernel make(DType source) {
  TileIoFunctions io = tile_io();
  io.stream_f32 = nullptr;  // the tile is too narrow
  return {.mr = kMr,
          .nr = kNr,
          .kb = kKb,
          .max_panel = 512,
          .cache = {256 << 10, 256, 64 << 10, 128 << 10},
          .packed = DType::kF32,
          .run = run,
          .pack = f32_packers_4x8x64(source),
          .io = io};
}

}  // namespace

const Kernel* portable_kernel(DType ab_dtype) {
  static const Kernel f32 = make(DType::kF32), bf16 = make(DType::kBF16);
  return ab_dtype == DType::kF32 ? &f32 : &bf16;
}

}  // namespace primus::turbo::gemm
