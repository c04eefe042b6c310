// Matrix products of linear layers. Our own kernels compute products of a few rows (linear/gpu_skinny.h,
// linear/gpu_narrow.h), products with one output (linear/gpu_single_column.h), the products of routers
// (linear/gpu_split.h), forward products of batch-invariant devices (linear/gpu_ordered.h), and add products
// of low rank (linear/gpu_short_sum.h). The library, if there is one (linear/gpu_blas.h), computes all other
// products that it supports, in some cases with our own addition (linear/added_apart.h). Our own kernels
// compute all products that the library does not support.
#include <algorithm>
#include <string>

#include "base/error.h"
#include "turbo/gpu/gemm_tile.h"
#include "turbo/gpu/loops.h"
#include "turbo/gpu/register.h"
#include "turbo/linear/added_apart.h"
#include "turbo/linear/gpu_blas.h"
#include "turbo/linear/gpu_narrow.h"
#include "turbo/linear/gpu_ordered.h"
#include "turbo/linear/gpu_short_sum.h"
#include "turbo/linear/gpu_single_column.h"
#include "turbo/linear/gpu_skinny.h"
#include "turbo/linear/gpu_split.h"
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

void multiply_here(Context& context, const Gemm& call) {
  if (call.a.dtype == DType::kF16) {  // then b is fp16, too
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

// c = round(c + product); the product is fp32.
template <class C, int kCount>
struct AddRowsBody {
  const float* product;
  C* c;
  PRIMUS_DEVICE void operator()(std::int64_t pack) const {
    const std::int64_t i = pack * kCount;
    float sum[kCount], addend[kCount];
    load<kCount>(c + i, sum);
    load_once<kCount>(product + i, addend);
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) sum[k] += addend[k];
    store<kCount>(c + i, sum);
  }
};

void add_rows(Context& context, const Tensor& product, const Tensor& to) {
  with_operand_type(to.dtype, [&](auto tag) {
    using C = decltype(tag);
    const float* from = context.data<float>(product);
    C* c = context.data<C>(to);
    const std::int64_t n = to.elements();
    with_vector<float>(rows_of_vectors<float>(n, from, c), [&](auto count) {
      for_each(context, n / count, AddRowsBody<C, count>{from, c});
    });
  });
}

void multiply_and_add(Context& context, const Gemm& call) {
  const std::int64_t rows = call.c.rows(), at_once = rows_added_at_once(call);
  for (std::int64_t begin = 0; begin < rows; begin += at_once) {
    const std::int64_t end = std::min(begin + at_once, rows);
    const Gemm part = product_of_rows(call, begin, end, added_bytes(call, at_once));
    if (!multiply_by_library(context, part)) multiply_here(context, part);
    add_rows(context, part.c, rows_of_result(call, begin, end));
  }
}

// Throws for a product of bf16 with fp32, as in routers, whose order of additions depends on the number of
// rows.
void refuse_unordered(const Context& context, const Gemm& call) {
  if (!context.batch_invariant() || call.role != GemmRole::kForward) return;
  if (call.a.dtype != DType::kBF16 || call.b.dtype != DType::kF32 || call.c.elements() == 0) return;
  throw unsupported(
      "batch_invariant has no kernel for a router of " + std::to_string(call.b.rows()) + " x " +
          std::to_string(call.b.cols()) +
          " elements on this GPU: it needs an even number of experts, and rows of multiples of 8 "
          "elements",
      "choose the device cpu, or remove batch_invariant");
}

void gemm(Context& context, const Gemm& call) {
  if (!call.around.absent()) return multiply_normed(context, call);
  if (is_ordered(context, call)) return multiply_ordered(context, call);
  if (context.batch_invariant() && is_short_sum(call)) return add_short_sum(context, call);
  if (multiply_narrow(context, call) || multiply_skinny(context, call) ||
      multiply_single_column(context, call))
    return;
  if (is_split(context, call)) return multiply_split(context, call);
  refuse_unordered(context, call);
  if (is_short_sum(call)) return add_short_sum(context, call);
  if (is_added_apart(call)) return multiply_and_add(context, call);
  if (!multiply_by_library(context, call)) multiply_here(context, call);
}

std::int64_t workspace(Context& context, const Gemm& call) {
  if (!call.around.absent()) return takes_normed(context, call) ? 0 : Gemm::kNotTaken;
  if (is_ordered(context, call)) return 0;
  if (is_split(context, call)) return split_workspace(context, call);
  if (is_short_sum(call)) return 0;
  if (!is_added_apart(call)) return library_workspace(context, call);
  const std::int64_t rows = call.c.rows(), at_once = rows_added_at_once(call);
  const std::int64_t reserved = added_bytes(call, at_once);
  std::int64_t library = library_workspace(context, product_of_rows(call, 0, at_once, reserved));
  if (const std::int64_t last = rows % at_once; last > 0)
    library =
        std::max(library, library_workspace(context, product_of_rows(call, rows - last, rows, reserved)));
  return reserved + library;
}

}  // namespace

void register_linear(KernelTable& table) { table.add<Gemm, Context, &gemm, &workspace>(); }

}  // namespace primus::turbo::PRIMUS_GPU
