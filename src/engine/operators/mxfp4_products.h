// Products of linear layers with all operands in MXFP4, from fp32 or bf16 inputs, as in Primus-Turbo. The
// blocks that share a scale extend along the summed dimension. In a weight, square tiles share a scale, so
// forward and backward pass use the same rounded weight. Operands of weight gradients are transformed first
// (RoundMxfp4::hadamard). Accumulation and result types are as in Gemm and GroupedGemm.
#pragma once

#include "turbo/context.h"
#include "turbo/grouped_linear/grouped_linear.h"
#include "turbo/linear/linear.h"
#include "turbo/mxfp4/mxfp4.h"

namespace primus::engine {

// launch() of Mxfp4Linear or Mxfp4Grouped rounds the operands into the context's scratch arena, and launches
// the product of the rounded operands.
struct Mxfp4Linear {
  turbo::Gemm product;             // must not set `around`
  turbo::Mxfp4Random random = {};  // for rounding the output's gradient
  double flops() const { return product.flops(); }
};
void launch(turbo::Context& context, const Mxfp4Linear& call);

// Products of experts. Each expert's rows have their own blocks.
struct Mxfp4Grouped {
  turbo::GroupedGemm product;
  double flops() const { return product.flops(); }
};
void launch(turbo::Context& context, const Mxfp4Grouped& call);

}  // namespace primus::engine
