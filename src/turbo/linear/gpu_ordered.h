// Products of batch-invariant devices (DeviceSpec::batch_invariant), y = x · Wᵀ in bf16. The product of a row
// has the same bits for any number of rows: each sum is one chain of the matrix units' additions over k, in
// steps of 16.
#pragma once

#include "device/gpu/launch.h"
#include "turbo/linear/linear.h"

namespace primus::turbo::PRIMUS_GPU {

// Returns whether the device must compute this product in order: a forward product of two bf16 operands on a
// batch-invariant device. Throws Error(kUnsupported) if no kernel can: the GPU must have warpgroups, and rows
// must be multiples of 16 bytes.
bool is_ordered(const gpu::PRIMUS_GPU::Context& context, const Gemm& call);

// Enqueues a product for which is_ordered() returns true. Needs no workspace.
void multiply_ordered(gpu::PRIMUS_GPU::Context& context, const Gemm& call);

}  // namespace primus::turbo::PRIMUS_GPU
