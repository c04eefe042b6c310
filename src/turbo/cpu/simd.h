// Building blocks of CPU kernels: conversions, exp and related functions, and loops. The functions have no
// branches, so that the compiler vectorises them for the instruction set of the build.
//
// Only for cpu*.cpp files; everything is in the namespace of the instruction set being built.
#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdint>
#include <type_traits>

#include "device/cpu/cpu_device.h"
#include "tensor/bfloat16.h"
#include "tensor/float16.h"
#include "tensor/tensor.h"

#ifndef PRIMUS_CPU_ISA
#error "compile this file through primus_cpu_objects() (src/turbo/cpu/CMakeLists.txt)"
#endif

// PRIMUS_SIMD() before a loop with independent iterations vectorises the loop. Loops of in-place kernels are
// allowed if each iteration reads an element before writing the same element. Clauses are arguments:
// PRIMUS_SIMD(reduction(+ : sum)).
#define PRIMUS_PRAGMA(text) _Pragma(#text)
#define PRIMUS_SIMD(...) PRIMUS_PRAGMA(omp simd __VA_ARGS__)
#define PRIMUS_INLINE inline __attribute__((always_inline))

namespace primus::turbo::PRIMUS_CPU_ISA {

using cpu::CpuContext;

// ---- Element types ------------------------------------------------------------------------------

PRIMUS_INLINE float to_float(float x) { return x; }
PRIMUS_INLINE float to_float(BFloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}
PRIMUS_INLINE float to_float(Float16 x) { return float_of_half_bits(x.bits); }

// Returns x as a T, rounded to nearest even; NaN stays NaN. Equals BFloat16(x), but has no branch.
template <class T>
PRIMUS_INLINE T from_float(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else if constexpr (std::is_same_v<T, Float16>) {
    Float16 result;
    result.bits = half_bits_of_float(x);
    return result;
  } else {
    const auto u = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t half = 0x7fffU + ((u >> 16) & 1U);
    BFloat16 result;
    result.bits = static_cast<std::uint16_t>((x != x ? u | 0x400000U : u + half) >> 16);
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

// Like with_float_type(), but for operators that also accept fp16 (is_operand in turbo/check.h).
template <class Body>
PRIMUS_INLINE void with_operand_type(DType dtype, Body&& body) {
  if (dtype == DType::kF16) {
    body(Float16{});
  } else {
    with_float_type(dtype, body);
  }
}

// ---- Mathematics --------------------------------------------------------------------------------

// Returns a*b + c, fused if the instruction set has FMA. The build disables automatic contraction
// (-ffp-contract).
PRIMUS_INLINE float multiply_add(float a, float b, float c) {
#ifdef __FMA__
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// e^x = p * 2^n: p in [0.7, 1.5), n encoded in the low bits of a float near 1.5 * 2^23. Valid for |x| <=
// 2^21.
struct ExpParts {
  float p, shifted_n;
};
constexpr float kExpRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer

// x = n ln 2 + r, |r| <= ln 2 / 2, and a polynomial for e^r (coefficients: Cephes expf, Moshier).
PRIMUS_INLINE ExpParts exp_parts(float x) {
  const float shifted = multiply_add(x, 1.44269504088896341F, kExpRound);
  const float n = shifted - kExpRound;
  // ln 2 is split into two terms. The product of the first term with n is exact, because the term ends with
  // zero bits.
  float r = multiply_add(n, -0.693359375F, x);
  r = multiply_add(n, 2.12194440054690583e-4F, r);
  float p = 1.9875691500e-4F;
  p = multiply_add(p, r, 1.3981999507e-3F);
  p = multiply_add(p, r, 8.3334519073e-3F);
  p = multiply_add(p, r, 4.1665795894e-2F);
  p = multiply_add(p, r, 1.6666665459e-1F);
  p = multiply_add(p, r, 5.0000001201e-1F);
  return {multiply_add(p, r * r, r) + 1.0F, shifted};
}

// Returns e^x within 2 ulp for normal results and within 2 units of the last place for denormal results; inf
// for x >= 88.73, 0 for x <= -104 (including -inf), and NaN for NaN.
PRIMUS_INLINE float exp(float x) {
  // NaN stays NaN, because both comparisons are false.
  float y = x > 89.0F ? 89.0F : x;
  y = y < -104.0F ? -104.0F : y;
  const auto [p, shifted] = exp_parts(y);
  // Computes 2^n as a product of two powers, because n ranges from -150 to 128 and one exponent field has a
  // smaller range.
  const auto n = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(shifted) -
                                           std::bit_cast<std::uint32_t>(kExpRound));
  const std::int32_t half = n >> 1;
  const auto power = [](std::int32_t e) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(e + 127) << 23);
  };
  return p * power(half) * power(n - half);
}

// Returns exp(x) for x <= 43, at two thirds of the cost of exp() and with the same accuracy, including
// denormals, -inf and NaN. Softmax can use this function, because softmax first subtracts the largest value.
PRIMUS_INLINE float softmax_exp(float x) {
  const float y = x < -104.0F ? -104.0F : x;
  const auto [p, shifted] = exp_parts(y);
  // Computes one power instead of two: n + 64 is in [-86, 126], which an exponent field can hold. The factor
  // 2^-64 compensates.
  const auto power =
      std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) << 23) + ((127U + 64U) << 23));
  return p * power * 0x1p-64F;
}

// Returns 1 / (1 + e^-x) within 3 ulp for x >= -87, and the value at -87 (1.6e-38) for smaller x. Returns 0
// or 1 for NaN. A caller such as SiLU multiplies the result by x and still gets NaN.
PRIMUS_INLINE float sigmoid(float x) {
  // Clamps to [-87, 87] by comparing bits, which needs one instruction per limit; comparing floats needs
  // three.
  const auto bits = std::bit_cast<std::uint32_t>(-x);
  const auto below = static_cast<std::int32_t>(std::min(bits, std::bit_cast<std::uint32_t>(-87.0F)));
  const auto [p, shifted] =
      exp_parts(std::bit_cast<float>(std::min(below, std::bit_cast<std::int32_t>(87.0F))));
  // Adds n to the exponent field of p.
  const float e =
      std::bit_cast<float>(std::bit_cast<std::uint32_t>(p) + (std::bit_cast<std::uint32_t>(shifted) << 23));
  return 1.0F / (1.0F + e);
}

// Returns tanh(x) within 4 ulp; NaN for NaN.
PRIMUS_INLINE float tanh(float x) {
  // Lambert's continued fraction with five terms: for |x| <= 0.625 the relative truncation error is 1e-9.
  const float s = x * x;
  const float near =
      x * multiply_add(s + 105.0F, s, 945.0F) / multiply_add(multiply_add(15.0F, s, 420.0F), s, 945.0F);
  const float size = x < 0.0F ? -x : x;
  const float far = 1.0F - 2.0F / (exp(2.0F * size) + 1.0F);
  return size < 0.625F ? near : x < 0.0F ? -far : far;
}

// ---- Loops --------------------------------------------------------------------------------------

// Returns the sum of term(0) ... term(n-1), in an order that depends only on n. Uses many vector lanes,
// because the latency of additions would limit a single chain of additions.
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

// Divides n items, each with about `bytes_per_item` of memory traffic, among the threads of the pool by calls
// of body(begin, end). Tasks are large enough to hide the cost of claiming a task, and small enough that all
// cores finish at about the same time.
template <class Body>
void parallel_ranges(const CpuContext& context, std::int64_t n, std::int64_t bytes_per_item, Body body) {
  constexpr std::int64_t kTaskBytes = 128 << 10;
  const std::int64_t grain =
      std::max<std::int64_t>(kTaskBytes / std::max<std::int64_t>(bytes_per_item, 1), 1);
  context.pool().parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end, int) { body(begin, end); });
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
