#include "engine/operators/mxfp4_products.h"

#include "tensor/scratch_tensor.h"

namespace primus::engine {
namespace {

using turbo::GemmRole;
using turbo::RoundMxfp4;
using Blocks = RoundMxfp4::Blocks;

}  // namespace

void launch(turbo::Context& context, const Mxfp4Linear& call) {
  turbo::Gemm product = call.product;
  const ScratchTensor a(context.scratch, product.a.dtype, product.a.shape),
      b(context.scratch, product.b.dtype, product.b.shape);
  const bool weight_gradient = product.role == GemmRole::kWeightGradient;
  launch(context, RoundMxfp4{.x = product.a,
                             .out = a.get(),
                             .blocks = weight_gradient ? Blocks::kColumns : Blocks::kRows,
                             .hadamard = weight_gradient,
                             .random = call.random});
  launch(context, RoundMxfp4{.x = product.b,
                             .out = b.get(),
                             .blocks = weight_gradient ? Blocks::kColumns : Blocks::kTiles,
                             .hadamard = weight_gradient});
  product.a = a.get(), product.b = b.get();
  launch(context, product);
}

void launch(turbo::Context& context, const Mxfp4Grouped& call) {
  turbo::GroupedGemm product = call.product;
  if (product.role != GemmRole::kWeightGradient) {
    const ScratchTensor a(context.scratch, product.a.dtype, product.a.shape),
        b(context.scratch, product.b.dtype, product.b.shape);
    launch(context, RoundMxfp4{.x = product.a, .out = a.get(), .blocks = Blocks::kRows});
    launch(context, RoundMxfp4{.x = product.b, .out = b.get(), .blocks = Blocks::kTiles});
    product.a = a.get(), product.b = b.get();
    return launch(context, product);
  }
  // The blocks that share a scale extend along an expert's rows, so these rows are gathered first.
  const std::int64_t rows = product.rows();
  const ScratchTensor a(context.scratch, product.a.dtype, {rows, product.a.cols()}),
      b(context.scratch, product.b.dtype, {rows, product.b.cols()});
  const auto round = [&](const Tensor& x, const Tensor& picks, const Tensor& out) {
    launch(context, RoundMxfp4{.x = x,
                               .out = out,
                               .blocks = Blocks::kColumns,
                               .hadamard = true,
                               .offsets = product.offsets,
                               .picks = picks});
  };
  round(product.a, product.a_rows, a.get());
  round(product.b, product.b_rows, b.get());
  product.a = a.get(), product.b = b.get();
  product.a_rows = product.b_rows = {};
  launch(context, product);
}

}  // namespace primus::engine
