// Adds products with few terms per sum to a result, as low-rank adapters need. The time is that of reading
// and writing the result once.
#pragma once

#include "device/gpu/launch.h"
#include "turbo/linear/linear.h"

namespace primus::turbo::PRIMUS_GPU {

// Returns whether add_short_sum() supports this product: it accumulates into the result of a forward product
// or of an input gradient, all operands are bf16 and aligned to 16 bytes, sums have at most 64 terms, and
// all rows have a multiple of 8 elements.
bool is_short_sum(const Gemm& call);

// Enqueues the product. Each element is rounded once, and depends only on its own row and column.
void add_short_sum(gpu::PRIMUS_GPU::Context& context, const Gemm& call);

}  // namespace primus::turbo::PRIMUS_GPU
