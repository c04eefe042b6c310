#include "turbo/gemm/gemm.h"

#include <chrono>
#include <stdexcept>
#include <vector>

#include "tensor/bfloat16.h"

namespace primus::turbo {
namespace {

template <class T>
float load(const void* data, std::int64_t index) {
  return static_cast<float>(static_cast<const T*>(data)[index]);
}

template <class AB, class C>
void multiply_rows(const GemmArgs& g, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) {
    for (std::int64_t j = 0; j < g.n; ++j) {
      float sum = 0;
      for (std::int64_t p = 0; p < g.k; ++p) {
        const float x = load<AB>(g.a, g.layout == GemmLayout::kTN ? p * g.lda + i : i * g.lda + p);
        const float y = load<AB>(g.b, g.layout == GemmLayout::kNT ? j * g.ldb + p : p * g.ldb + j);
        sum += x * y;
      }
      C& out = static_cast<C*>(g.c)[i * g.ldc + j];
      out = C(g.accumulate ? static_cast<float>(out) + sum : sum);
    }
  }
}

}  // namespace

std::string_view name_of(GemmProvider) { return "portable"; }
bool gemm_provider_available(GemmProvider provider, DType) { return provider == GemmProvider::kPortable; }
GemmProvider default_gemm_provider(DType) { return GemmProvider::kPortable; }
std::size_t cpu_gemm_workspace_bytes(const GemmArgs&, int) { return 0; }
std::size_t gemm_packed_b_bytes(const GemmArgs&) { return 0; }
void gemm_pack_b(ThreadPool&, const GemmArgs&, void*) {}
double gemm_flops(const GemmArgs& g) {
  return 2.0 * static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k);
}

void cpu_gemm(ThreadPool& pool, const GemmArgs& g) {
  pool.parallel_for(g.m, 4, [&](std::int64_t begin, std::int64_t end, int) {
    if (g.ab_dtype == DType::kF32) {
      g.c_dtype == DType::kF32 ? multiply_rows<float, float>(g, begin, end)
                               : multiply_rows<float, BFloat16>(g, begin, end);
    } else {
      g.c_dtype == DType::kF32 ? multiply_rows<BFloat16, float>(g, begin, end)
                               : multiply_rows<BFloat16, BFloat16>(g, begin, end);
    }
  });
}

double measure_gemm_peak(ThreadPool& pool, DType dtype, double) {
  const std::int64_t size = 128;
  std::vector<float> a(size * size), b(size * size), c(size * size);
  GemmArgs g{.ab_dtype = dtype, .m = size, .n = size, .k = size};
  g.a = a.data(), g.b = b.data(), g.c = c.data();
  g.lda = g.ldb = g.ldc = size;
  const auto start = std::chrono::steady_clock::now();
  cpu_gemm(pool, g);
  return gemm_flops(g) / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
double measure_fma_peak(ThreadPool&, DType, double) { return 0; }

}  // namespace primus::turbo
