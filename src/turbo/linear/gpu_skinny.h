// Products of a few rows, as decoding has them: bound by reading the weights once, which libraries'
// algorithms are not made for.
#pragma once

#include "device/gpu/launch.h"
#include "turbo/linear/linear.h"

namespace primus::turbo::PRIMUS_GPU {

// Enqueues y = x · Wᵀ, all bf16 (or with an fp32 result), of at most 8 rows whose length is a multiple of 8,
// and says whether it did. A row of the result does not depend on how many others there are, nor on the GPU.
bool multiply_skinny(gpu::PRIMUS_GPU::Context& context, const Gemm& call);

// Enqueues a product with what is around it, and whether it can: where the rows fit shared memory.
void multiply_normed(gpu::PRIMUS_GPU::Context& context, const Gemm& call);
bool takes_normed(const gpu::PRIMUS_GPU::Context& context, const Gemm& call);

}  // namespace primus::turbo::PRIMUS_GPU
