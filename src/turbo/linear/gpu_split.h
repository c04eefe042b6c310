// Products of a bf16 operand and an fp32 operand on the matrix units, as in routers of experts. An fp32
// number is a sum of bf16 parts, and products of parts are exact. linear/cpu_split.h computes such products
// on CPUs. Products of a few rows use ordinary multiply-adds.
#pragma once

#include "device/gpu/launch.h"
#include "turbo/linear/linear.h"

namespace primus::turbo::PRIMUS_GPU {

// Returns whether multiply_split() supports this product: it must have the types of one of the three products
// of a router, and rows of both operands must be multiples of 8 elements.
bool is_split(const gpu::PRIMUS_GPU::Context& context, const Gemm& call);

// Returns the bytes of workspace that multiply_split() needs.
std::int64_t split_workspace(const gpu::PRIMUS_GPU::Context& context, const Gemm& call);

// Enqueues the product. Sums are divided into the same ranges on every GPU, so the order of additions depends
// only on the sizes. On a batch-invariant device, the order in forward products does not depend on the number
// of rows.
void multiply_split(gpu::PRIMUS_GPU::Context& context, const Gemm& call);

}  // namespace primus::turbo::PRIMUS_GPU
