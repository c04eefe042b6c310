// Products of a bf16 operand with an fp32 one on the matrix units, as routers of experts have them: an fp32
// number is a sum of bf16 parts, and products of parts are exact. linear/cpu_split.h does the same on CPUs.
// Those of a few rows are ordinary multiply-adds.
#pragma once

#include "device/gpu/launch.h"
#include "turbo/linear/linear.h"

namespace primus::turbo::PRIMUS_GPU {

// Whether multiply_split() takes this product: types as a router's three products have them, and rows of both
// operands that are whole lines of 16 bytes of bf16.
bool is_split(const Gemm& call);

// Bytes of workspace that it needs.
std::int64_t split_workspace(const Gemm& call);

// Enqueues it. Depends on nothing but sizes: sums are cut into the same pieces on every GPU.
void multiply_split(gpu::PRIMUS_GPU::Context& context, const Gemm& call);

}  // namespace primus::turbo::PRIMUS_GPU
