// Matrix products on the CPU: C (+)= op(A) · op(B), row-major, fp32 or bf16 operands, accumulation in fp32.
//
// The three layouts correspond to the three products of a linear layer with x [T, I], W [O, I] and d_y [T,
// O]:
//   kNT  y   [T, O]  = x · Wᵀ        m = T, n = O, k = I   (forward)
//   kNN  d_x [T, I]  = d_y · W       m = T, n = I, k = O   (input gradient)
//   kTN  d_W [O, I] += d_yᵀ · x      m = O, n = I, k = T   (weight gradient)
//
// Numerics: every element of C is one sum over k. The order of this sum depends only on m, n, k, types and
// provider. With `row_invariant`, it does not depend on m either. Therefore results are bit-identical for any
// number of threads, and from run to run on one kind of CPU. NaN and infinities propagate as in IEEE
// arithmetic. The bf16 instructions (providers kAmx and kAvx512Bf16) treat subnormal inputs and sums
// (magnitudes below 1.2e-38) as zero; the other providers do not.
//
// Speed: bf16 products are up to a third faster if the operands and all rows of C begin at cache lines (64
// bytes). The blocking follows Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication"
// (2008).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/system/thread_pool.h"
#include "tensor/dtype.h"

namespace primus::turbo {

enum class GemmLayout : std::uint8_t { kNT, kNN, kTN };

enum class GemmProvider : std::uint8_t {
  kAuto,        // the fastest provider for the operand type on this CPU
  kPortable,    // plain C++ in fp32 (bf16 is converted while packing), any CPU
  kXsmm,        // libxsmm in fp32 (bf16 is converted while packing), AVX2 and AVX-512
  kAvx512Bf16,  // libxsmm in bf16 with vdpbf16ps: bf16 operands only
  kAmx,         // Intel AMX tiles: bf16 operands only
};

std::string_view name_of(GemmProvider provider);
// Returns whether this CPU and operating system can run `provider` on operands of this type.
bool gemm_provider_available(GemmProvider provider, DType ab_dtype);
// Returns the provider that kAuto selects for operands of this type on this CPU.
GemmProvider default_gemm_provider(DType ab_dtype);

// Memory that the caller reads after a product. Any address is safe, because this is only a prefetch hint.
struct GemmReadAhead {
  const void* data = nullptr;
  std::int64_t bytes = 0;
};

// A tensor with more bytes than this is assumed to leave the caches before it is read again.
inline constexpr std::int64_t kGemmPastCaches = std::int64_t{16} << 20;

// Optional: row i of a (as stored in memory) is row a[i] of a larger matrix that begins at address
// GemmArgs::a. `b` does the same for GemmArgs::b.
struct GemmPickedRows {
  const std::int32_t* a = nullptr;
  const std::int32_t* b = nullptr;
};

struct GemmArgs {
  GemmLayout layout = GemmLayout::kNT;
  DType ab_dtype = DType::kF32;  // type of a and b: kF32 or kBF16
  DType c_dtype = DType::kF32;   // kF32 or kBF16
  bool accumulate = false;  // C += instead of C =; if C is bf16, the sum is computed in fp32 and rounded once
  // Whether the order of the sums must be the same for any m. If false, products of a few rows use a kernel
  // with another order.
  bool row_invariant = false;
  std::int64_t m = 0, n = 0, k = 0;
  // A leading dimension is the distance of consecutive rows in memory, in elements. The leading dimension may
  // be larger than the length of a row.
  const void* a = nullptr;  // kNT, kNN: [m, k] with lda >= k;  kTN: [k, m] with lda >= m
  std::int64_t lda = 0;
  const void* b = nullptr;  // kNT: [n, k] with ldb >= k;  kNN, kTN: [k, n] with ldb >= n
  std::int64_t ldb = 0;
  GemmPickedRows rows;
  void* c = nullptr;  // [m, n] with ldc >= n; overlaps neither a nor b
  std::int64_t ldc = 0;
  // Uses non-temporal stores, which do not read C first. For an fp32 C that is not read soon
  // (kGemmPastCaches). Only has an effect if rows of C are complete cache lines.
  bool c_past_caches = false;
  // Optional, for sequences of small products: the operands of the next product, which are prefetched to L2
  // during this product. Providers may ignore this hint; the result does not depend on the hint.
  std::array<GemmReadAhead, 2> ahead;
  void* workspace = nullptr;  // at least cpu_gemm_workspace_bytes(), any alignment
  std::size_t workspace_bytes = 0;
  GemmProvider provider = GemmProvider::kAuto;
};

// Returns the bytes of workspace that cpu_gemm() needs with a pool of `threads` threads. Does not read the
// pointers in `args`.
std::size_t cpu_gemm_workspace_bytes(const GemmArgs& args, int threads);

// Returns the bytes of a workspace that is large enough for every product with m <= args.m, k <= args.k and n
// = args.n.
std::size_t cpu_gemm_workspace_bound(const GemmArgs& args, int threads);

// Computes the product. m, n or k may be 0; with k = 0, C becomes 0, or is unchanged if `accumulate`. Throws
// std::logic_error for wrong types or leading dimensions, a workspace that is too small, or an unavailable
// provider, because these are bugs of the caller. Calls allocate no memory, except that libxsmm allocates
// memory to compile a kernel for each new shape.
void cpu_gemm(ThreadPool& pool, const GemmArgs& args);

// Returns the number of floating-point operations of the product: 2 m n k.
double gemm_flops(const GemmArgs& args);

// Returns the peak rate of cpu_gemm() on this machine, in FLOP/s. The measurement repeats a few large square
// products with operands of `dtype` for `seconds` in total (each product at least once). The result is the
// best rate. Allocates about 40 MB temporarily.
double measure_gemm_peak(ThreadPool& pool, DType dtype, double seconds);

// Measures the peak rate of the arithmetic units, in FLOP/s. All threads of the pool run the default
// provider's instruction for `dtype`, with all operands in registers. Returns 0 if the CPU has neither
// AVX-512 nor AVX2.
double measure_fma_peak(ThreadPool& pool, DType dtype, double seconds);

}  // namespace primus::turbo
