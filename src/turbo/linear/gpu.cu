// Matrix products of linear layers. Those of a few rows are our own (linear/gpu_skinny.h). Where a library is
// there (linear/gpu_blas.h), it multiplies whatever else it covers; the rest is ours again.
#include "turbo/gpu/gemm_tile.h"
#include "turbo/gpu/register.h"
#include "turbo/linear/gpu_blas.h"
#include "turbo/linear/gpu_skinny.h"
#include "turbo/linear/linear.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

template <class A, class B, class C>
TileProduct<A, B, C> product_of(Context& context, const Gemm& g) {
  TileProduct<A, B, C> p{};
  p.a = context.data<A>(g.a);
  p.b = context.data<B>(g.b);
  p.c = context.data<C>(g.c);
  p.m = g.c.rows();
  p.n = g.c.cols();
  p.c_row = g.c.cols();
  p.batches = 1;
  p.accumulate = g.accumulate;
  const std::int64_t a_cols = g.a.cols(), b_cols = g.b.cols();
  switch (g.role) {
    case GemmRole::kForward:
      p.k = a_cols;
      p.a_row = a_cols, p.a_col = 1;
      p.b_row = b_cols, p.b_col = 1;
      break;
    case GemmRole::kInputGradient:
      p.k = a_cols;
      p.a_row = a_cols, p.a_col = 1;
      p.b_row = 1, p.b_col = b_cols;
      break;
    case GemmRole::kWeightGradient:
      p.k = g.a.rows();
      p.a_row = 1, p.a_col = a_cols;
      p.b_row = 1, p.b_col = b_cols;
      break;
  }
  return p;
}

void gemm(Context& context, const Gemm& call) {
  if (!call.around.absent()) return multiply_normed(context, call);
  if (multiply_skinny(context, call) || multiply_by_library(context, call)) return;
  if (call.a.dtype == DType::kF16) {  // and so is b
    if (call.c.dtype == DType::kF16) {
      run_product(context, product_of<Float16, Float16, Float16>(context, call));
    } else {
      run_product(context, product_of<Float16, Float16, float>(context, call));
    }
    return;
  }
  with_float_type(call.a.dtype, [&](auto a) {
    with_float_type(call.b.dtype, [&](auto b) {
      with_float_type(call.c.dtype, [&](auto c) {
        run_product(context, product_of<decltype(a), decltype(b), decltype(c)>(context, call));
      });
    });
  });
}

std::int64_t workspace(Context& context, const Gemm& call) {
  if (call.around.absent()) return library_workspace(context, call);
  return takes_normed(context, call) ? 0 : Gemm::kNotTaken;
}

}  // namespace

void register_linear(KernelTable& table) { table.add<Gemm, Context, &gemm, &workspace>(); }

}  // namespace primus::turbo::PRIMUS_GPU
