// Products of a linear layer with one output, as the gate of a shared expert. Tiles of matrix units would
// have one column out of 128, and libraries need results whose rows have at least 16 bytes.
#pragma once

#include "device/gpu/launch.h"
#include "turbo/linear/linear.h"

namespace primus::turbo::PRIMUS_GPU {

// Enqueues the product and returns true if this kernel supports the call: a weight with one row and up to
// 4096 columns, a multiple of 8, and bf16 operands, of which those with more than one column are aligned to
// 16 bytes. Otherwise returns false. The sums depend only on the sizes.
bool multiply_single_column(gpu::PRIMUS_GPU::Context& context, const Gemm& call);

}  // namespace primus::turbo::PRIMUS_GPU
