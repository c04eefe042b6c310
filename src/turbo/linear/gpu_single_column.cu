#include "turbo/gpu/loops.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/linear/gpu_single_column.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

constexpr std::int64_t kMaxColumns = 4096;  // the sums of d_W then fit the memory for partial results
constexpr int kLine = kVector<BFloat16>;    // number of elements per load of a thread

// y[row] = x[row] · w. A warp processes a row.
template <class C>
struct ColumnOfRows {
  static constexpr int kThreads = 256, kWarps = kThreads / kWarp;
  const BFloat16 *x, *w;
  C* y;
  std::int64_t rows, columns;
  bool accumulate;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t row = block() * kWarps + warp();
    if (row >= rows) return;
    float sum = 0;
    PRIMUS_UNROLL_BY(4)
    for (std::int64_t i = lane() * kLine; i < columns; i += kWarp * kLine) {
      float a[kLine], b[kLine];
      load<kLine>(x + row * columns + i, a);
      load<kLine>(w + i, b);
      PRIMUS_UNROLL
      for (int k = 0; k < kLine; ++k) sum = multiply_add(a[k], b[k], sum);
    }
    sum = warp_reduce(sum);
    if (lane() == 0) y[row] = from_float<C>(accumulate ? to_float(y[row]) + sum : sum);
  }
};

// d_x[row] = d_y[row] · w.
template <class C>
struct RowsOfColumn {
  const BFloat16 *d_y, *w;
  C* d_x;
  std::int64_t columns;
  bool accumulate;

  PRIMUS_DEVICE void operator()(std::int64_t pack) const {
    const std::int64_t at = pack * kLine;
    const float scale = to_float(d_y[at / columns]);
    float value[kLine];
    load<kLine>(w + at % columns, value);
    if (accumulate) {
      float before[kLine];
      load<kLine>(d_x + at, before);
      PRIMUS_UNROLL
      for (int k = 0; k < kLine; ++k) value[k] = before[k] + scale * value[k];
    } else {
      PRIMUS_UNROLL
      for (int k = 0; k < kLine; ++k) value[k] *= scale;
    }
    store<kLine>(d_x + at, value);
  }
};

// d_w = the sum over rows of d_y[row] · x[row].
struct WeightOfColumn {
  static constexpr int kCount = kLine;
  const BFloat16 *d_y, *x;
  std::int64_t columns;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t i, float (&value)[kCount]) const {
    const float scale = to_float(d_y[row]);
    load<kLine>(x + row * columns + i, value);
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) value[k] *= scale;
  }
};

// Returns whether the tensor is in bf16, with rows that can be read in vectors.
bool in_lines(Context& context, const Tensor& tensor, DType dtype) {
  return tensor.dtype == dtype && tensor.cols() % kLine == 0 && tensor.elements() > 0 &&
         reinterpret_cast<std::uintptr_t>(context.data<std::byte>(tensor)) % (kLine * size_of(dtype)) == 0;
}

}  // namespace

bool multiply_single_column(Context& context, const Gemm& call) {
  const bool weight_gradient = call.role == GemmRole::kWeightGradient;
  const Tensor& weight = weight_gradient ? call.c : call.b;
  if (weight.rows() != 1 || weight.cols() > kMaxColumns || call.a.dtype != DType::kBF16 ||
      call.b.dtype != DType::kBF16 || (call.c.dtype != DType::kBF16 && call.c.dtype != DType::kF32))
    return false;
  if (!in_lines(context, call.b, DType::kBF16)) return false;
  if (!in_lines(context, call.role == GemmRole::kForward ? call.a : call.c,
                call.role == GemmRole::kForward ? DType::kBF16 : call.c.dtype))
    return false;
  const std::int64_t columns = weight.cols(), rows = call.a.rows();
  const auto* const a = context.data<BFloat16>(call.a);
  const auto* const b = context.data<BFloat16>(call.b);
  if (weight_gradient) {
    auto* const lines = partials<float>(context, RowSlices(rows, columns).count * columns);
    row_sum(context, rows, columns, lines, call.c, call.accumulate, WeightOfColumn{a, b, columns});
    return true;
  }
  with_float_type(call.c.dtype, [&](auto tag) {
    using C = decltype(tag);
    C* const c = context.data<C>(call.c);
    if (call.role == GemmRole::kForward) {
      launch(context, blocks_for(rows, ColumnOfRows<C>::kWarps),
             ColumnOfRows<C>{a, b, c, rows, columns, call.accumulate});
    } else {
      for_each(context, rows * columns / kLine, RowsOfColumn<C>{a, b, c, columns, call.accumulate});
    }
  });
  return true;
}

}  // namespace primus::turbo::PRIMUS_GPU
