// Products of a few rows, as in decoding. Such a product takes the time of reading the weights once. Library
// algorithms are slow for such products.
#pragma once

#include "device/gpu/launch.h"
#include "turbo/linear/linear.h"

namespace primus::turbo::PRIMUS_GPU {

// Enqueues y = x · Wᵀ and returns true if this kernel supports the call: at most 8 rows of x, a row length
// that is a multiple of 8, bf16 operands aligned to 16 bytes, and a bf16 or fp32 result. Otherwise returns
// false. A row of the result does not depend on the number of rows or on the GPU.
bool multiply_skinny(gpu::PRIMUS_GPU::Context& context, const Gemm& call);

// Enqueues a product with the operations that are fused with it (Gemm::around). takes_normed() returns
// whether the kernel supports the call: the rows must fit into shared memory.
void multiply_normed(gpu::PRIMUS_GPU::Context& context, const Gemm& call);
bool takes_normed(const gpu::PRIMUS_GPU::Context& context, const Gemm& call);

}  // namespace primus::turbo::PRIMUS_GPU
