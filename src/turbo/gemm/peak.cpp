#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

#include "tensor/bfloat16.h"
#include "turbo/gemm/cpu_features.h"
#include "turbo/gemm/gemm.h"
#include "turbo/gemm/kernel.h"

namespace primus::turbo {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Calls body() at least once, until `seconds` have passed, and returns the shortest time of one call.
template <class Body>
double shortest(double seconds, Body body) {
  double best = 1e30;
  const double end = now() + seconds;
  do {
    const double start = now();
    body();
    best = std::min(best, now() - start);
  } while (now() < end);
  return best;
}

// Loops that use only registers. Each iteration has enough independent multiply-adds to hide the latency of a
// multiply-add. The empty asm statements keep each value in a register and prevent the compiler from
// simplifying the loop.
constexpr std::int64_t kIterations = 50000;
constexpr int kChains = 12;

__attribute__((target("avx2,fma"))) void fma_loop_256(std::int64_t iterations) {
  __m256 sum[kChains];
  const __m256 factor = _mm256_set1_ps(0.5F);
  for (auto& x : sum) x = factor;
  for (std::int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (auto& x : sum) {
      x = _mm256_fmadd_ps(x, factor, factor);
      asm volatile("" : "+x"(x));
    }
  }
}

__attribute__((target("avx512f"))) void fma_loop_512(std::int64_t iterations) {
  __m512 sum[kChains];
  const __m512 factor = _mm512_set1_ps(0.5F);
  for (auto& x : sum) x = factor;
  for (std::int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (auto& x : sum) {
      x = _mm512_fmadd_ps(x, factor, factor);
      asm volatile("" : "+v"(x));
    }
  }
}

__attribute__((target("avx512f,avx512bf16"))) void bf16_loop_512(std::int64_t iterations) {
  __m512 sum[kChains];
  const __m512bh factor = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5F), _mm512_set1_ps(0.5F));
  for (auto& x : sum) x = _mm512_set1_ps(0.5F);
  for (std::int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (auto& x : sum) {
      x = _mm512_dpbf16_ps(x, factor, factor);
      asm volatile("" : "+v"(x));
    }
  }
}

// Makes tensors begin at a cache line.
struct alignas(64) CacheLine {
  std::byte bytes[64];
};

struct Loop {
  void (*run)(std::int64_t iterations) = nullptr;
  double flops_per_iteration = 0;
};

Loop loop_of(GemmProvider provider) {
  if (provider == GemmProvider::kAmx) return {gemm::amx_product_loop, 4 * 2.0 * 16 * 16 * 32};
  if (provider == GemmProvider::kAvx512Bf16) return {bf16_loop_512, kChains * 2.0 * 32};
  if (gemm::cpu_features().avx512) return {fma_loop_512, kChains * 2.0 * 16};
  if (gemm::cpu_features().avx2_fma) return {fma_loop_256, kChains * 2.0 * 8};
  return {};
}

}  // namespace

double measure_fma_peak(ThreadPool& pool, DType dtype, double seconds) {
  const Loop loop = loop_of(default_gemm_provider(dtype));
  if (!loop.run) return 0;
  // There are several tasks per thread. If a thread starts late, other threads run its tasks.
  const std::int64_t tasks = 4 * pool.size();
  const double time = shortest(seconds, [&] {
    pool.parallel_for(tasks, 1, [&](std::int64_t, std::int64_t, int) { loop.run(kIterations); });
  });
  return loop.flops_per_iteration * static_cast<double>(kIterations * tasks) / time;
}

double measure_gemm_peak(ThreadPool& pool, DType dtype, double seconds) {
  constexpr std::int64_t kSizes[] = {1024, 1536, 2048};
  constexpr std::size_t kLargest = std::size_t{2048} * 2048;
  const auto element = static_cast<std::size_t>(size_of(dtype));
  std::vector<CacheLine> a(kLargest * element / sizeof(CacheLine)), b(a.size());
  for (auto* operand : {&a, &b}) {
    // All elements are 1. Products of ones are as fast as products of other numbers, and are never subnormal.
    if (dtype == DType::kBF16) {
      auto* values = reinterpret_cast<BFloat16*>(operand->data());
      std::fill(values, values + kLargest, BFloat16(1.0F));
    } else {
      auto* values = reinterpret_cast<float*>(operand->data());
      std::fill(values, values + kLargest, 1.0F);
    }
  }
  std::vector<CacheLine> c(kLargest * sizeof(float) / sizeof(CacheLine));
  double best = 0;
  for (const std::int64_t size : kSizes) {
    GemmArgs g{.layout = GemmLayout::kNT,
               .ab_dtype = dtype,
               .c_dtype = DType::kF32,
               .m = size,
               .n = size,
               .k = size};
    g.a = a.data(), g.b = b.data(), g.c = c.data();
    g.lda = g.ldb = g.ldc = size;
    g.workspace_bytes = cpu_gemm_workspace_bytes(g, pool.size());
    std::vector<CacheLine> workspace(g.workspace_bytes / sizeof(CacheLine) + 1);
    g.workspace = workspace.data();
    best = std::max(best, gemm_flops(g) / shortest(seconds / 3, [&] { cpu_gemm(pool, g); }));
  }
  return best;
}

}  // namespace primus::turbo
