// Products of a bf16 operand with an fp32 one on the matrix units, as in routers of experts. An fp32 number
// is a sum of bf16 parts, and products of parts are exact. linear/cpu_split.h does the same on CPUs. Products
// of a few rows use ordinary multiply-adds.
#pragma once

#include "device/gpu/launch.h"
#include "turbo/linear/linear.h"

namespace primus::turbo::PRIMUS_GPU {

// Returns whether multiply_split() accepts this product: it has the types of one of a router's three
// products, and in bf16 the rows of both operands are multiples of 16 bytes.
bool is_split(const Gemm& call);

// Returns the bytes of workspace that multiply_split() needs.
std::int64_t split_workspace(const Gemm& call);

// Enqueues the product. Results depend only on the sizes: sums are cut into the same pieces on every GPU.
void multiply_split(gpu::PRIMUS_GPU::Context& context, const Gemm& call);

}  // namespace primus::turbo::PRIMUS_GPU
