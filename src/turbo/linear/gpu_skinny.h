// Products of a few rows, as in decoding, whose time is that of reading the weights once. Library algorithms
// are slow for such products.
#pragma once

#include "device/gpu/launch.h"
#include "turbo/linear/linear.h"

namespace primus::turbo::PRIMUS_GPU {

// If x has at most 8 rows, whose length is a multiple of 8, enqueues y = x · Wᵀ with bf16 operands and a bf16
// or fp32 result. Returns whether it did. A row of the result does not depend on the number of rows or on the
// GPU.
bool multiply_skinny(gpu::PRIMUS_GPU::Context& context, const Gemm& call);

// Enqueues a product with the operations that are fused with it (Gemm::around). takes_normed() returns
// whether this is possible: the rows must fit into shared memory.
void multiply_normed(gpu::PRIMUS_GPU::Context& context, const Gemm& call);
bool takes_normed(const gpu::PRIMUS_GPU::Context& context, const Gemm& call);

}  // namespace primus::turbo::PRIMUS_GPU
