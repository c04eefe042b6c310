#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/layer_norm/formula.h"
#include "turbo/layer_norm/layer_norm.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

void layer_norm(CpuContext& context, const LayerNorm& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t n = a.x.cols();
    const T* const weight = context.data<const T>(a.weight);
    const auto* const bias = context.data<const float>(a.bias);
    parallel_ranges(context, a.x.rows(), 2 * n * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* const x = context.data<const T>(a.x) + row * n;
        T* const y = context.data<T>(a.y) + row * n;
        const float mean =
            sum_terms(n, [=](std::int64_t i) { return to_float(x[i]); }) / static_cast<float>(n);
        const float squares = sum_terms(n, [=](std::int64_t i) {
          const float from_mean = to_float(x[i]) - mean;
          return from_mean * from_mean;
        });
        const LayerNormRow normal{mean, inverse_rms(squares, n, a.eps)};
        PRIMUS_SIMD()
        for (std::int64_t i = 0; i < n; ++i)
          y[i] = from_float<T>(normal(to_float(x[i]), to_float(weight[i]), bias[i]));
      }
    });
  });
}

}  // namespace

void register_layer_norm(KernelTable& table) { table.add<LayerNorm, CpuContext, &layer_norm>(); }

}  // namespace primus::turbo::PRIMUS_CPU_ISA
