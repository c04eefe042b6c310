// Tensor elements in kernel code: conversions between storage types and float, vector loads and stores,
// mathematics.
//
// Sources are compiled without floating-point contraction: a product and a sum are rounded separately. Only
// multiply_add() rounds once. Therefore a kernel that only adds and multiplies has the same results on every
// target.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "device/gpu/launch.h"
#include "tensor/bfloat16.h"
#include "tensor/dtype.h"
#include "tensor/float16.h"

namespace primus::turbo::PRIMUS_GPU {

using namespace gpu::PRIMUS_GPU;  // NOLINT: kernels use both namespaces of a target
using gpu::Fault;

// ---- Types --------------------------------------------------------------------------------------

PRIMUS_DEVICE float to_float(float x) { return x; }
PRIMUS_DEVICE float to_float(BFloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}
PRIMUS_DEVICE float to_float(Float16 x) {
#if defined(__CUDACC__) && !defined(__HIP__)
  return __half2float(__ushort_as_half(x.bits));
#else
  return float_of_half_bits(x.bits);
#endif
}

template <class T>
PRIMUS_DEVICE T from_float(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else if constexpr (std::is_same_v<T, Float16>) {
    T result;
#if defined(__CUDACC__) && !defined(__HIP__)
    result.bits = __half_as_ushort(__float2half_rn(x));
#else
    result.bits = half_bits_of_float(x);
#endif
    return result;
  } else {
    T result;
#if defined(__CUDACC__) && !defined(__HIP__)
    result.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
#else
    const auto u = std::bit_cast<std::uint32_t>(x);
    // NaN must stay NaN: the carry of rounding could overflow its mantissa.
    result.bits = static_cast<std::uint16_t>(
        (u & 0x7fffffffU) > 0x7f800000U ? (u >> 16) | 0x0040U : (u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
#endif
    return result;
  }
}

// Calls body(T{}) for the storage type of a tensor.
template <class Body>
void with_float_type(DType dtype, Body&& body) {
  if (dtype == DType::kF32) {
    body(float{});
  } else {
    body(BFloat16{});
  }
}

// Like with_float_type(), but for operators that also accept fp16 (is_operand in turbo/check.h).
template <class Body>
void with_operand_type(DType dtype, Body&& body) {
  if (dtype == DType::kF16) {
    body(Float16{});
  } else {
    with_float_type(dtype, body);
  }
}

// Calls body(constant) with a compile-time bool.
template <class Body>
void with_flag(bool flag, Body&& body) {
  if (flag) {
    body(std::true_type{});
  } else {
    body(std::false_type{});
  }
}

// ---- Several elements at once -------------------------------------------------------------------

// kCount consecutive elements, loaded and stored by one instruction of at most 16 bytes.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T at[kCount];
};

// Number of elements in 16 bytes.
template <class T>
inline constexpr int kVector = 16 / static_cast<int>(sizeof(T));

template <int kCount, class T>
PRIMUS_DEVICE void load(const T* from, float (&to)[kCount]) {
  const auto pack = *reinterpret_cast<const Pack<T, kCount>*>(from);
  PRIMUS_UNROLL
  for (int i = 0; i < kCount; ++i) to[i] = to_float(pack.at[i]);
}
template <int kCount, class T>
PRIMUS_DEVICE void store(T* to, const float (&from)[kCount]) {
  Pack<T, kCount> pack;
  PRIMUS_UNROLL
  for (int i = 0; i < kCount; ++i) pack.at[i] = from_float<T>(from[i]);
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
}

// 16 bytes of data of any type.
struct alignas(16) Bytes16 {
  std::uint32_t word[4];
};
PRIMUS_DEVICE Bytes16 load_line(const void* from) { return *static_cast<const Bytes16*>(from); }
// Loads data that is not read again, without evicting other data from the caches.
PRIMUS_DEVICE Bytes16 load_line_once(const void* from) {
#if PRIMUS_CUDA_ARCH >= 800
  const uint4 line = __ldcs(static_cast<const uint4*>(from));
  return {{line.x, line.y, line.z, line.w}};
#else
  return load_line(from);
#endif
}

// Like load() and store(), but for data that is not used again soon. Such data does not evict other data from
// the caches.
template <int kCount, class T>
PRIMUS_DEVICE void load_once(const T* from, float (&to)[kCount]) {
  if constexpr (sizeof(Pack<T, kCount>) == sizeof(Bytes16)) {
    const auto pack = std::bit_cast<Pack<T, kCount>>(load_line_once(from));
    PRIMUS_UNROLL
    for (int i = 0; i < kCount; ++i) to[i] = to_float(pack.at[i]);
  } else {
    load<kCount>(from, to);
  }
}
template <int kCount, class T>
PRIMUS_DEVICE void store_once(T* to, const float (&from)[kCount]) {
#if PRIMUS_CUDA_ARCH >= 800
  Pack<T, kCount> pack;
  PRIMUS_UNROLL
  for (int i = 0; i < kCount; ++i) pack.at[i] = from_float<T>(from[i]);
  if constexpr (sizeof(pack) == sizeof(uint4)) {
    return __stcs(reinterpret_cast<uint4*>(to), std::bit_cast<uint4>(pack));
  } else if constexpr (sizeof(pack) == sizeof(uint2)) {
    return __stcs(reinterpret_cast<uint2*>(to), std::bit_cast<uint2>(pack));
  }
#endif
  store<kCount>(to, from);
}

// Prefetches the bytes at this address into L2. The values of the bytes are not read, so another kernel may
// still write these bytes.
PRIMUS_DEVICE void prefetch([[maybe_unused]] const void* from) {
#if PRIMUS_CUDA_ARCH >= 800
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(from)));
#endif
}

// Returns whether rows of `cols` elements of type T at these addresses can be read 16 bytes at a time.
template <class T, class... Pointers>
bool rows_of_vectors(std::int64_t cols, const Pointers*... pointers) {
  const bool aligned = (... && (reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0));
  return aligned && cols % kVector<T> == 0;
}

// Calls body(constant) with the number of elements that a thread handles at once.
template <class T, class Body>
void with_vector(bool possible, Body&& body) {
  if (possible) {
    body(std::integral_constant<int, kVector<T>>{});
  } else {
    body(std::integral_constant<int, 1>{});
  }
}

// ---- Mathematics --------------------------------------------------------------------------------

PRIMUS_DEVICE float multiply_add(float a, float b, float c) { return ::fmaf(a, b, c); }
PRIMUS_DEVICE float infinity() { return std::bit_cast<float>(0x7f800000U); }

// These functions are accurate to about two units in the last place. Kernels use these functions where exact
// functions would be slower.
PRIMUS_DEVICE float fast_root(float x) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return ::sqrtf(x);
#endif
}
// Requires |y| < 2^126.
PRIMUS_DEVICE float fast_quotient(float x, float y) {
#if defined(__CUDA_ARCH__)
  return __fdividef(x, y);
#else
  return x / y;
#endif
}
// Returns e^x. The relative error grows with |x|; for x = -20 it is 1e-6.
PRIMUS_DEVICE float fast_exp(float x) {
#if defined(__CUDA_ARCH__)
  return __expf(x);
#else
  return ::expf(x);
#endif
}

// Returns 1 / (1 + e^-x); 0 for x below about -88, where e^-x is infinite.
PRIMUS_DEVICE float sigmoid(float x) { return 1.0F / (1.0F + ::expf(-x)); }

PRIMUS_DEVICE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
PRIMUS_DEVICE std::int64_t larger(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

}  // namespace primus::turbo::PRIMUS_GPU
