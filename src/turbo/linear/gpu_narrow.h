// Products of few rows with a matrix of few rows, as in decoding with adapters of low rank. Sums are long,
// and the result is small, so the sum must be divided into pieces to occupy a GPU.
#pragma once

#include "device/gpu/launch.h"
#include "turbo/linear/linear.h"

namespace primus::turbo::PRIMUS_GPU {

// Enqueues y = x · Wᵀ and returns true if this kernel supports the call: at most 128 rows of x, at most 64
// rows of W, sums of at least 1024 terms, a row length that is a multiple of 8, bf16 operands aligned to 16
// bytes, and a bf16 or fp32 result. Otherwise returns false. A row of the result does not depend on the
// number of rows or on the GPU.
bool multiply_narrow(gpu::PRIMUS_GPU::Context& context, const Gemm& call);

}  // namespace primus::turbo::PRIMUS_GPU
