// y = x · Wᵀ for a few rows of x, as in generation. The product is memory-bound, because every weight is used
// only a few times. W is read once, without packing, and multiplied with all rows of x.
#pragma once

#include <cstddef>

#include "base/system/thread_pool.h"
#include "turbo/gemm/gemm.h"

namespace primus::turbo::gemm {

constexpr std::int64_t kSkinnyRows = 8;

inline bool is_skinny(const GemmArgs& args) {
  return args.layout == GemmLayout::kNT && args.m <= kSkinnyRows && !args.rows.b;
}

std::size_t skinny_workspace_bytes(const GemmArgs& args);

enum class VectorLevel { kBaseline, kAvx2, kAvx512 };
// Returns the widest level that this CPU supports.
VectorLevel best_vector_level();

// Requires m, n, k > 0, layout kNT and a workspace that is large enough. The order of a sum depends only on k
// and `level`. With GemmArgs::row_invariant, the order is that of the blocked product with packed fp32
// operands: a chain of multiply-adds in the order of k.
void multiply_skinny(ThreadPool& pool, const GemmArgs& args, VectorLevel level);

// Computes the product of bf16 operands with AMX, in the order of the blocked product of amx_kernel(), which
// must not be null.
std::size_t skinny_amx_workspace_bytes(const GemmArgs& args);
void multiply_skinny_amx(ThreadPool& pool, const GemmArgs& args);

}  // namespace primus::turbo::gemm
