// The blocked product: packs blocks of both operands into the workspace, and multiplies tile by tile.
#pragma once

#include <cstddef>

#include "base/system/thread_pool.h"
#include "turbo/gemm/gemm.h"
#include "turbo/gemm/kernel.h"

namespace primus::turbo::gemm {

// Returns the bytes of workspace that multiply_blocked() needs with this kernel and number of threads.
std::size_t blocked_workspace_bytes(const Kernel& kernel, const GemmArgs& args, int threads);
// Returns the bytes of a workspace that is large enough for every product with m <= args.m, k <= args.k and n
// = args.n.
std::size_t blocked_workspace_bound(const Kernel& kernel, const GemmArgs& args, int threads);

// Requires m, n, k > 0, valid args and a workspace that is large enough.
void multiply_blocked(ThreadPool& pool, const Kernel& kernel, const GemmArgs& args);

}  // namespace primus::turbo::gemm
