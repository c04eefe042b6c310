// Fused products: every block normalises the rows of x, and rotates or gates its results.
#include "turbo/linear/gpu_few_rows.h"
#include "turbo/linear/gpu_skinny.h"

namespace primus::turbo::PRIMUS_GPU {

static_assert(kFewRows <= AroundProduct::kMaxRows && StagedRows::kLine == AroundProduct::kColumnMultiple);

bool takes_normed(const Context& context, const Gemm& g) {
  // Shorter rows are not fused, because the bits of a row would then depend on the number of rows. Sums of
  // these kernels are divided among warps, so batch-invariant devices compute the operators apart.
  return !context.batch_invariant() && NormedRows::has_order(g.a.cols()) &&
         takes_few_rows(context, g.a.rows(), g.a.cols(), g.b.rows());
}

void multiply_normed(Context& context, const Gemm& g) {
  const AroundProduct& p = g.around;
  const std::int64_t rows = g.a.rows(), in = g.a.cols(), out = g.b.rows();
  if (!takes_normed(context, g)) throw std::logic_error("gpu: a product that is_taken() says no to");
#ifdef PRIMUS_GPU_VENDOR
  context.shared().count("products of few rows, with their norm: own kernel");
#endif
  const NormedRows x{{context.data<BFloat16>(g.a), static_cast<int>(rows), static_cast<int>(in)},
                     optional<BFloat16>(context, p.delta),
                     context.data<BFloat16>(p.norm),
                     optional<BFloat16>(context, p.sum),
                     p.eps,
                     p.offset};
  const auto* w = context.data<BFloat16>(g.b);
  const auto* bias = optional<BFloat16>(context, p.bias);
  auto* y = context.data<BFloat16>(g.c);
  const int width = static_cast<int>(out), half = static_cast<int>(p.head_dim / 2);
  switch (p.end) {
    case AroundProduct::End::kNone:
      return launch_few_rows(context, x, PlainResults<BFloat16>{y, bias, width}, out, w, rows, in);
    case AroundProduct::End::kRope:
      return launch_few_rows(context, x,
                             RotatedResults{{width / 2, half},
                                            y,
                                            bias,
                                            context.data<std::int32_t>(p.positions),
                                            context.data<float>(p.table),
                                            static_cast<int>(p.heads)},
                             out / 2, w, rows, in);
    case AroundProduct::End::kSwiglu:
      return launch_few_rows(context, x, GatedResults{{width / 2, width / 2}, y}, out / 2, w, rows, in);
  }
}

}  // namespace primus::turbo::PRIMUS_GPU
