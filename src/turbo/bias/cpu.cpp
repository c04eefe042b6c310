#include "turbo/bias/bias.h"
#include "turbo/cpu/reduce.h"
#include "turbo/cpu/register.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

void add_bias(CpuContext& context, const AddBias& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t n = a.x.cols();
    const T* bias = context.data<const T>(a.bias);
    parallel_ranges(context, a.x.rows(), 2 * n * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* x = context.data<const T>(a.x) + row * n;
        T* y = context.data<T>(a.y) + row * n;
        PRIMUS_SIMD()
        for (std::int64_t i = 0; i < n; ++i) y[i] = from_float<T>(to_float(x[i]) + to_float(bias[i]));
      }
    });
  });
}

std::int64_t backward_weight_workspace(CpuContext&, const AddBiasBackwardWeight& a) {
  return row_sum_workspace(a.d_y.rows(), a.d_y.cols());
}

void backward_weight(CpuContext& context, const AddBiasBackwardWeight& a) {
  with_float_type(a.d_y.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t n = a.d_y.cols();
    const T* d_y = context.data<const T>(a.d_y);
    row_sum(context, a.d_y.rows(), n, context.data<float>(a.workspace), a.d_bias, a.accumulate,
            [=](float* line, std::int64_t row) {
              const T* d_y_row = d_y + row * n;
              PRIMUS_SIMD()
              for (std::int64_t i = 0; i < n; ++i) line[i] += to_float(d_y_row[i]);
            });
  });
}

}  // namespace

void register_bias(KernelTable& table) {
  table.add<AddBias, CpuContext, &add_bias>();
  table.add<AddBiasBackwardWeight, CpuContext, &backward_weight, &backward_weight_workspace>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
