// Products of a few rows, as in decoding, where reading the weights once is the bottleneck. The libraries'
// algorithms are slow for such products.
#pragma once

#include "device/gpu/launch.h"
#include "turbo/linear/linear.h"

namespace primus::turbo::PRIMUS_GPU {

// Enqueues y = x · Wᵀ, all bf16 (or with an fp32 result), for at most 8 rows whose length is a multiple of 8,
// and returns whether it did. A row of the result depends neither on the number of other rows nor on the GPU.
bool multiply_skinny(gpu::PRIMUS_GPU::Context& context, const Gemm& call);

// Enqueues a product with its fused neighbours (Gemm::around). takes_normed() returns whether this is
// possible: the rows must fit in shared memory.
void multiply_normed(gpu::PRIMUS_GPU::Context& context, const Gemm& call);
bool takes_normed(const gpu::PRIMUS_GPU::Context& context, const Gemm& call);

}  // namespace primus::turbo::PRIMUS_GPU
