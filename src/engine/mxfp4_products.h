// Whole products of linear layers in MXFP4, from operands in fp32 or bf16, as Primus-Turbo's: blocks lie
// along what is summed over. Weights share scales in tiles, so forward and backward see the same weight;
// operands of weight gradients are transformed first (RoundMxfp4::hadamard). Sums and results are those of
// Gemm and GroupedGemm.
#pragma once

#include "turbo/context.h"
#include "turbo/grouped_linear/grouped_linear.h"
#include "turbo/linear/linear.h"
#include "turbo/mxfp4/mxfp4.h"

namespace primus::engine {

// Both round their operands into the context's scratch arena, and launch the product of what comes out.
struct Mxfp4Linear {
  turbo::Gemm product;             // without `around`
  turbo::Mxfp4Random random = {};  // of the output's gradient
  double flops() const { return product.flops(); }
};
void launch(turbo::Context& context, const Mxfp4Linear& call);

// The products of experts. Each expert's rows have blocks of their own.
struct Mxfp4Grouped {
  turbo::GroupedGemm product;
  double flops() const { return product.flops(); }
};
void launch(turbo::Context& context, const Mxfp4Grouped& call);

}  // namespace primus::engine
