#include "turbo/linear/gpu_few_rows.h"
#include "turbo/linear/gpu_skinny.h"

namespace primus::turbo::PRIMUS_GPU {

bool multiply_skinny(Context& context, const Gemm& call) {
  const std::int64_t rows = call.a.rows(), in = call.a.cols(), out = call.b.rows();
  const auto aligned = [](const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0; };
  if (call.role != GemmRole::kForward || call.accumulate || !takes_few_rows(rows, in, out)) return false;
  if (call.a.dtype != DType::kBF16 || call.b.dtype != DType::kBF16) return false;
  if (!aligned(call.a) || !aligned(call.b)) return false;
#ifdef PRIMUS_GPU_VENDOR
  context.shared().count("products of few rows: own kernel");
#endif
  const auto *x = context.data<BFloat16>(call.a), *w = context.data<BFloat16>(call.b);
  const int few = static_cast<int>(rows), width = static_cast<int>(in);
  with_float_type(call.c.dtype, [&](auto tag) {
    using C = decltype(tag);
    const PlainResults<C> results{context.data<C>(call.c), nullptr, static_cast<int>(out)};
    if (fits_staged(context, rows, in)) {
      launch_few_rows(context, StagedRows{x, few, width}, results, out, w, rows, in);
    } else {
      launch_few_rows(context, RowsInPlace{x, few, width}, results, out, w, rows, in);
    }
  });
  return true;
}

}  // namespace primus::turbo::PRIMUS_GPU
