#include "turbo/gemm/gemm.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "turbo/gemm/blocked.h"
#include "turbo/gemm/cpu_features.h"
#include "turbo/gemm/kernel.h"
#include "turbo/gemm/skinny.h"

namespace primus::turbo {
namespace gemm {

const Kernel* find_kernel(GemmProvider provider, DType ab_dtype) {
  switch (provider) {
    case GemmProvider::kPortable:
      return portable_kernel(ab_dtype);
    case GemmProvider::kXsmm:
      return xsmm_kernel(ab_dtype);
    case GemmProvider::kAvx512Bf16:
      return ab_dtype == DType::kBF16 ? xsmm_bf16_kernel() : nullptr;
    case GemmProvider::kAmx:
      return ab_dtype == DType::kBF16 ? amx_kernel() : nullptr;
    case GemmProvider::kAuto:
      break;
  }
  return nullptr;
}

}  // namespace gemm

namespace {

const gemm::Kernel& kernel_of(const GemmArgs& g) {
  const GemmProvider provider =
      g.provider == GemmProvider::kAuto ? default_gemm_provider(g.ab_dtype) : g.provider;
  const gemm::Kernel* kernel = gemm::find_kernel(provider, g.ab_dtype);
  if (!kernel)
    throw std::logic_error("gemm: provider " + std::string(name_of(provider)) + " is not available here");
  return *kernel;
}

void check(bool condition, const char* what) {
  if (!condition) throw std::logic_error(std::string("gemm: ") + what);
}

void check_shape(const GemmArgs& g) {
  check(g.ab_dtype == DType::kF32 || g.ab_dtype == DType::kBF16, "operands must be fp32 or bf16");
  check(g.c_dtype == DType::kF32 || g.c_dtype == DType::kBF16, "the result must be fp32 or bf16");
  check(g.m >= 0 && g.n >= 0 && g.k >= 0, "negative extent");
}

void check_pointers(const GemmArgs& g) {
  check(g.lda >= (g.layout == GemmLayout::kTN ? g.m : g.k), "lda is shorter than a row of A");
  check(g.ldb >= (g.layout == GemmLayout::kNT ? g.k : g.n), "ldb is shorter than a row of B");
  check(g.ldc >= g.n, "ldc is shorter than a row of C");
  check(g.c != nullptr && (g.k == 0 || (g.a != nullptr && g.b != nullptr)), "null operand");
}

// With `row_invariant`, products of a few rows need the order of sums of the blocked product.
enum class FewRows { kNo, kVectors, kAmx };

FewRows few_rows(const GemmArgs& g) {
  if (!gemm::is_skinny(g)) return FewRows::kNo;
  if (!g.row_invariant || kernel_of(g).packed == DType::kF32) return FewRows::kVectors;
  return &kernel_of(g) == gemm::amx_kernel() ? FewRows::kAmx : FewRows::kNo;
}

std::size_t few_rows_workspace_bytes(const GemmArgs& g) {
  return few_rows(g) == FewRows::kAmx ? gemm::skinny_amx_workspace_bytes(g) : gemm::skinny_workspace_bytes(g);
}

}  // namespace

std::string_view name_of(GemmProvider provider) {
  switch (provider) {
    case GemmProvider::kAuto:
      return "auto";
    case GemmProvider::kPortable:
      return "portable";
    case GemmProvider::kXsmm:
      return "xsmm";
    case GemmProvider::kAvx512Bf16:
      return "avx512_bf16";
    case GemmProvider::kAmx:
      return "amx";
  }
  return "?";
}

bool gemm_provider_available(GemmProvider provider, DType ab_dtype) {
  return provider == GemmProvider::kAuto || gemm::find_kernel(provider, ab_dtype) != nullptr;
}

GemmProvider default_gemm_provider(DType ab_dtype) {
  for (GemmProvider provider : {GemmProvider::kAmx, GemmProvider::kAvx512Bf16, GemmProvider::kXsmm}) {
    if (provider == GemmProvider::kAvx512Bf16 && !gemm::cpu_features().fast_vdpbf16) continue;
    if (gemm::find_kernel(provider, ab_dtype)) return provider;
  }
  return GemmProvider::kPortable;
}

double gemm_flops(const GemmArgs& g) {
  return 2.0 * static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k);
}

std::size_t cpu_gemm_workspace_bytes(const GemmArgs& g, int threads) {
  check_shape(g);
  if (g.m == 0 || g.n == 0 || g.k == 0) return 0;
  if (few_rows(g) != FewRows::kNo) return few_rows_workspace_bytes(g);
  return gemm::blocked_workspace_bytes(kernel_of(g), g, threads);
}

std::size_t cpu_gemm_workspace_bound(const GemmArgs& g, int threads) {
  check_shape(g);
  if (g.m == 0 || g.n == 0 || g.k == 0) return 0;
  GemmArgs skinny = g;
  skinny.m = std::min(g.m, gemm::kSkinnyRows);
  const std::size_t blocked = gemm::blocked_workspace_bound(kernel_of(g), g, threads);
  return few_rows(skinny) == FewRows::kNo ? blocked : std::max(blocked, few_rows_workspace_bytes(skinny));
}

void cpu_gemm(ThreadPool& pool, const GemmArgs& g) {
  check_shape(g);
  if (g.m == 0 || g.n == 0) return;
  check_pointers(g);
  if (g.k == 0) {
    if (g.accumulate) return;
    for (std::int64_t i = 0; i < g.m; ++i) {
      const auto element = static_cast<std::size_t>(size_of(g.c_dtype));
      std::memset(static_cast<char*>(g.c) + static_cast<std::size_t>(i * g.ldc) * element, 0,
                  static_cast<std::size_t>(g.n) * element);
    }
    return;
  }
  const gemm::Kernel& kernel = kernel_of(g);
  check(g.workspace != nullptr && g.workspace_bytes >= cpu_gemm_workspace_bytes(g, pool.size()),
        "workspace is too small");
  switch (few_rows(g)) {
    case FewRows::kNo:
      return gemm::multiply_blocked(pool, kernel, g);
    case FewRows::kAmx:
      return gemm::multiply_skinny_amx(pool, g);
    case FewRows::kVectors:
      return gemm::multiply_skinny(
          pool, g,
          g.provider == GemmProvider::kPortable ? gemm::VectorLevel::kBaseline : gemm::best_vector_level());
  }
}

}  // namespace primus::turbo
