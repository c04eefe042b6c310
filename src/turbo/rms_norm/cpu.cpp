#include "turbo/cpu/reduce.h"
#include "turbo/cpu/register.h"
#include "turbo/rms_norm/formula.h"
#include "turbo/rms_norm/rms_norm.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// ---- Forward ------------------------------------------------------------------------------------

void forward(CpuContext& context, const RmsNormForward& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t hidden = a.x.cols();
    const T* weight = context.data<T>(a.weight);
    const float offset = a.offset;
    float* rstd = context.data<float>(a.rstd);
    const int streams = a.delta.absent() ? 2 : 4;
    parallel_ranges(
        context, a.x.rows(), streams * hidden * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t row = begin; row < end; ++row) {
            const T* x = context.data<T>(a.x) + row * hidden;
            T* y = context.data<T>(a.y) + row * hidden;
            if (!a.delta.absent()) {
              const T* delta = context.data<T>(a.delta) + row * hidden;
              T* sum = context.data<T>(a.sum) + row * hidden;
              PRIMUS_SIMD()
              for (std::int64_t i = 0; i < hidden; ++i)
                sum[i] = from_float<T>(to_float(x[i]) + to_float(delta[i]));
              x = sum;
            }
            const float squares =
                sum_terms(hidden, [&](std::int64_t i) { return to_float(x[i]) * to_float(x[i]); });
            const float scale = inverse_rms(squares, hidden, a.eps);
            rstd[row] = scale;
            PRIMUS_SIMD()
            for (std::int64_t i = 0; i < hidden; ++i)
              y[i] = from_float<T>(norm_output(to_float(x[i]), scale, to_float(weight[i]) + offset));
          }
        });
  });
}

// ---- Backward, weight ---------------------------------------------------------------------------

std::int64_t backward_weight_workspace(CpuContext&, const RmsNormBackwardWeight& a) {
  return row_sum_workspace(a.x.rows(), a.x.cols());
}

void backward_weight(CpuContext& context, const RmsNormBackwardWeight& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t hidden = a.x.cols();
    const T* x = context.data<T>(a.x);
    const T* d_y = context.data<T>(a.d_y);
    const float* rstd = context.data<float>(a.rstd);
    row_sum(context, a.x.rows(), hidden, context.data<float>(a.workspace), a.d_weight, a.accumulate,
            [=](float* line, std::int64_t row) {
              const T* x_row = x + row * hidden;
              const T* d_y_row = d_y + row * hidden;
              const float scale = rstd[row];
              PRIMUS_SIMD()
              for (std::int64_t i = 0; i < hidden; ++i)
                line[i] += norm_weight_term(to_float(d_y_row[i]), to_float(x_row[i]), scale);
            });
  });
}

// ---- Backward, input ----------------------------------------------------------------------------

std::int64_t backward_input_workspace(CpuContext&, const RmsNormBackwardInput& a) {
  return a.d_weight.absent() ? 0 : row_sum_workspace(a.x.rows(), a.x.cols());
}

// Computes d_x = d_sum + NormGradient; the gradient of the normalised values is d_y * weight.
void backward_input(CpuContext& context, const RmsNormBackwardInput& a) {
  // Computes d_weight before d_x, because d_x may share the memory of d_y.
  if (!a.d_weight.absent()) {
    backward_weight(context, {.x = a.x,
                              .rstd = a.rstd,
                              .d_y = a.d_y,
                              .d_weight = a.d_weight,
                              .accumulate = a.accumulate,
                              .workspace = a.workspace});
  }
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t hidden = a.x.cols();
    const T* weight = context.data<T>(a.weight);
    const float offset = a.offset;
    const int streams = a.d_sum.absent() ? 3 : 4;
    parallel_ranges(context, a.x.rows(), streams * hidden * sizeof(T),
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t row = begin; row < end; ++row) {
                        const T* x = context.data<T>(a.x) + row * hidden;
                        const T* d_y = context.data<T>(a.d_y) + row * hidden;
                        T* d_x = context.data<T>(a.d_x) + row * hidden;
                        const float rstd = context.data<float>(a.rstd)[row];
                        const float dot = sum_terms(hidden, [&](std::int64_t i) {
                          return to_float(d_y[i]) * (to_float(weight[i]) + offset) * to_float(x[i]);
                        });
                        const NormGradient gradient(dot, rstd, hidden);
                        if (a.d_sum.absent()) {
                          PRIMUS_SIMD()
                          for (std::int64_t i = 0; i < hidden; ++i) {
                            d_x[i] = from_float<T>(
                                gradient(to_float(d_y[i]) * (to_float(weight[i]) + offset), to_float(x[i])));
                          }
                        } else {
                          const T* d_sum = context.data<T>(a.d_sum) + row * hidden;
                          PRIMUS_SIMD()
                          for (std::int64_t i = 0; i < hidden; ++i) {
                            const float through =
                                gradient(to_float(d_y[i]) * (to_float(weight[i]) + offset), to_float(x[i]));
                            d_x[i] = from_float<T>(to_float(d_sum[i]) + through);
                          }
                        }
                      }
                    });
  });
}

}  // namespace

void register_rms_norm(KernelTable& table) {
  table.add<RmsNormForward, CpuContext, &forward>();
  table.add<RmsNormBackwardInput, CpuContext, &backward_input, &backward_input_workspace>();
  table.add<RmsNormBackwardWeight, CpuContext, &backward_weight, &backward_weight_workspace>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
