// Building blocks of CPU kernels: conversions, exp and friends as branch-free code that compilers turn into
// vector instructions of whatever instruction set they build for, and the loops around them.
//
// For cpu*.cpp files only; everything lives in the namespace of the instruction set being built.
#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdint>
#include <type_traits>

#include "device/cpu/cpu_device.h"
#include "tensor/bfloat16.h"
#include "tensor/tensor.h"

#ifndef PRIMUS_CPU_ISA
#error "compile this file through primus_cpu_objects() (src/turbo/cpu/CMakeLists.txt)"
#endif

// Before a loop whose iterations do not depend on each other: vectorise it. In-place kernels qualify as long
// as an element is read before it is written, in its own iteration. Takes clauses: PRIMUS_SIMD(reduction(+ :
// sum)).
#define PRIMUS_PRAGMA(text) _Pragma(#text)
#define PRIMUS_SIMD(...) PRIMUS_PRAGMA(omp simd __VA_ARGS__)
#define PRIMUS_INLINE [[gnu::always_inline]] inline

namespace primus::turbo::PRIMUS_CPU_ISA {

using cpu::CpuContext;

// ---- Element types
// -------------------------------------------------------------------------------------------------

PRIMUS_INLINE float to_float(float x) { return x; }
PRIMUS_INLINE float to_float(BFloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

// x as a T, rounded to nearest even; NaN stays NaN. Equals BFloat16(x), without its branch.
template <class T>
PRIMUS_INLINE T from_float(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    const auto u = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t rounded = (u + 0x7fffU + ((u >> 16) & 1U)) >> 16;
    const std::uint32_t quiet_nan = (u >> 16) | 0x40U;
    BFloat16 result;
    result.bits = static_cast<std::uint16_t>((u & 0x7fffffffU) > 0x7f800000U ? quiet_nan : rounded);
    return result;
  }
}

// Calls body(T{}) with the C++ type of a floating-point tensor: with_float_type(x.dtype, [&](auto t) { ...
// }).
template <class Body>
PRIMUS_INLINE void with_float_type(DType dtype, Body&& body) {
  assert(dtype == DType::kF32 || dtype == DType::kBF16);
  if (dtype == DType::kF32) {
    body(float{});
  } else {
    body(BFloat16{});
  }
}

// ---- Mathematics
// ---------------------------------------------------------------------------------------------------

// a*b + c, fused where the instruction set has it. The build forbids the compiler to fuse by itself.
PRIMUS_INLINE float multiply_add(float a, float b, float c) {
#ifdef __FMA__
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// e^x within 2 ulp wherever it is normal and within 2 units of the last place of denormals below; inf
// from 88.73 up, 0 from -104 down (-inf included), NaN for NaN. x = n ln 2 + r, |r| <= ln 2 / 2, and a
// polynomial for e^r.
PRIMUS_INLINE float exp(float x) {
  // NaN passes both comparisons on the left-hand side.
  float y = x > 89.0F ? 89.0F : x;
  y = y < -104.0F ? -104.0F : y;
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  constexpr float kRound = 12582912.0F;
  const float shifted = multiply_add(y, 1.44269504088896341F, kRound);
  const float n = shifted - kRound;
  // ln 2 in two parts; the first has trailing zeros, so that n times it is exact.
  float r = multiply_add(n, -0.693359375F, y);
  r = multiply_add(n, 2.12194440054690583e-4F, r);
  float p = 1.9875691500e-4F;
  p = multiply_add(p, r, 1.3981999507e-3F);
  p = multiply_add(p, r, 8.3334519073e-3F);
  p = multiply_add(p, r, 4.1665795894e-2F);
  p = multiply_add(p, r, 1.6666665459e-1F);
  p = multiply_add(p, r, 5.0000001201e-1F);
  p = multiply_add(p, r * r, r) + 1.0F;
  // 2^n in two halves: n reaches from -150 to 128, further than one exponent field.
  const auto exponent =
      static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(kRound));
  const std::int32_t half = exponent >> 1;
  const auto power = [](std::int32_t e) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(e + 127) << 23);
  };
  return p * power(half) * power(exponent - half);
}

PRIMUS_INLINE float sigmoid(float x) { return 1.0F / (1.0F + PRIMUS_CPU_ISA::exp(-x)); }

// ---- Loops
// ---------------------------------------------------------------------------------------------------------

// Sum of term(0) ... term(n-1) in an order that only n decides. Many lanes, because a chain of additions
// waits for each of them.
template <class Term>
PRIMUS_INLINE float sum_terms(std::int64_t n, Term term) {
  constexpr int kLanes = 64;
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    PRIMUS_SIMD()
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += term(i);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

// Splits n items of about `bytes_per_item` memory traffic over the pool: body(begin, end). Chunks are large
// enough to hide the cost of claiming one, and small enough for the cores to end together.
template <class Body>
void parallel_ranges(const CpuContext& context, std::int64_t n, std::int64_t bytes_per_item, Body body) {
  constexpr std::int64_t kChunkBytes = 128 << 10;
  const std::int64_t grain =
      std::max<std::int64_t>(kChunkBytes / std::max<std::int64_t>(bytes_per_item, 1), 1);
  context.pool().parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end, int) { body(begin, end); });
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
