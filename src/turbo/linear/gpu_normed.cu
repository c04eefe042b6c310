// The product's blocks norm the rows themselves, and rotate or gate what they have added up. Where rows do
// not fit shared memory, one norm goes before.
#include "turbo/gpu/register.h"
#include "turbo/linear/gpu_few_rows.h"
#include "turbo/linear/gpu_skinny.h"
#include "turbo/rms_norm/rms_norm.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

static_assert(kFewRows == AroundProduct::kMostRows && StagedRows::kLine == AroundProduct::kColumnMultiple);

std::int64_t whole_lines(std::int64_t bytes) { return (bytes + 15) / 16 * 16; }

template <class Rows>
void multiply(Context& context, const Gemm& g, const Rows& x) {
  const AroundProduct& p = g.around;
  const std::int64_t rows = g.a.rows(), in = g.a.cols(), out = g.b.rows();
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

}  // namespace

// Of rows that do not fit: what is normed, and 1 / their root mean squares.
std::int64_t normed_workspace(Context& context, const Gemm& g) {
  if (fits_staged(context, g.a.rows(), g.a.cols())) return 0;
  return whole_lines(g.a.bytes()) + g.a.rows() * size_of(DType::kF32);
}

void multiply_normed(Context& context, const Gemm& g) {
  const AroundProduct& p = g.around;
  const std::int64_t rows = g.a.rows(), in = g.a.cols();
  if (!takes_few_rows(rows, in, g.b.rows())) throw std::logic_error("gpu: rows of a product are too long");
#ifdef PRIMUS_GPU_VENDOR
  context.shared().count("products of few rows, with their norm: own kernel");
#endif
  const int few = static_cast<int>(rows), width = static_cast<int>(in);
  if (fits_staged(context, rows, in)) {
    return multiply(context, g,
                    NormedRows{{context.data<BFloat16>(g.a), few, width},
                               optional<BFloat16>(context, p.delta),
                               context.data<BFloat16>(p.norm),
                               optional<BFloat16>(context, p.sum),
                               p.eps});
  }
  static const KernelTable table = [] {
    KernelTable norms;
    register_rms_norm(norms);
    return norms;
  }();
  auto* memory = static_cast<std::byte*>(g.workspace.data);
  const Tensor normed(memory, DType::kBF16, g.a.shape);
  const RmsNormForward norm{.x = g.a,
                            .delta = p.delta,
                            .weight = p.norm,
                            .sum = p.sum,
                            .y = normed,
                            .rstd = Tensor(memory + whole_lines(g.a.bytes()), DType::kF32, {rows}),
                            .eps = p.eps};
  table[RmsNormForward::kId].run(context, &norm);
  multiply(context, g, RowsInPlace{context.data<BFloat16>(normed), few, width});
}

}  // namespace primus::turbo::PRIMUS_GPU
