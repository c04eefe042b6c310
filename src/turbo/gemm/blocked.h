// The blocked product: packs both operands piece by piece into the workspace and multiplies tile by tile.
#pragma once

#include <cstddef>

#include "base/system/thread_pool.h"
#include "turbo/gemm/gemm.h"
#include "turbo/gemm/kernel.h"

namespace primus::turbo::gemm {

// Returns the workspace for multiply_blocked() with this kernel and thread count, in bytes.
std::size_t blocked_workspace_bytes(const Kernel& kernel, const GemmArgs& args, int threads);
// Returns the bytes of a workspace for any product whose m and k are at most those of `args` and whose n is
// the same.
std::size_t blocked_workspace_bound(const Kernel& kernel, const GemmArgs& args, int threads);

// m, n and k must be positive, args valid and the workspace large enough.
void multiply_blocked(ThreadPool& pool, const Kernel& kernel, const GemmArgs& args);

}  // namespace primus::turbo::gemm
