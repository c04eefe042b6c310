#include "turbo/cpu/reduce.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/delta_gates/delta_gates.h"
#include "turbo/delta_gates/formula.h"
#include "turbo/gate/formula.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// Calls body(row, b and a of the row) for all rows, with the C++ type of `ba`.
template <class Body>
PRIMUS_INLINE void for_each_row(CpuContext& context, const Tensor& ba, Body body) {
  with_float_type(ba.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t cols = ba.cols();
    parallel_ranges(context, ba.rows(), 16 * cols * sizeof(float), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) body(row, context.data<const T>(ba) + row * cols);
    });
  });
}

void forward(CpuContext& context, const DeltaGatesForward& a) {
  const std::int64_t heads = a.ba.cols() / 2;
  const auto *a_log = context.data<const float>(a.a_log), *dt_bias = context.data<const float>(a.dt_bias);
  for_each_row(context, a.ba, [&](std::int64_t row, const auto* ba) {
    float* g = context.data<float>(a.g) + row * heads;
    float* beta = context.data<float>(a.beta) + row * heads;
    for (std::int64_t h = 0; h < heads; ++h) {
      beta[h] = sigmoid(to_float(ba[h]));
      g[h] = DeltaDecay{a_log[h]}.value(to_float(ba[heads + h]) + dt_bias[h]);
    }
  });
}

void backward_input(CpuContext& context, const DeltaGatesBackwardInput& a) {
  const std::int64_t heads = a.ba.cols() / 2;
  const auto *a_log = context.data<const float>(a.a_log), *dt_bias = context.data<const float>(a.dt_bias);
  for_each_row(context, a.ba, [&]<class T>(std::int64_t row, const T* ba) {
    const float* d_g = context.data<const float>(a.d_g) + row * heads;
    const float* d_beta = context.data<const float>(a.d_beta) + row * heads;
    T* d_ba = context.data<T>(a.d_ba) + row * 2 * heads;
    for (std::int64_t h = 0; h < heads; ++h) {
      const float s = sigmoid(to_float(ba[h])), x = to_float(ba[heads + h]) + dt_bias[h];
      d_ba[h] = from_float<T>(d_beta[h] * sigmoid_slope(s));
      d_ba[heads + h] = from_float<T>(DeltaDecay{a_log[h]}.gradient(d_g[h]) * sigmoid(x));
    }
  });
}

std::int64_t backward_weight_workspace(CpuContext&, const DeltaGatesBackwardWeight& a) {
  return row_sum_workspace(a.ba.rows(), a.ba.cols());
}

void backward_weight(CpuContext& context, const DeltaGatesBackwardWeight& a) {
  with_float_type(a.ba.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t heads = a.ba.cols() / 2;
    const T* ba = context.data<const T>(a.ba);
    const auto *a_log = context.data<const float>(a.a_log), *dt_bias = context.data<const float>(a.dt_bias);
    const auto* d_g = context.data<const float>(a.d_g);
    row_sum(context, a.ba.rows(), 2 * heads, context.data<float>(a.workspace), a.d_weights, false,
            [=](float* line, std::int64_t row) {
              for (std::int64_t h = 0; h < heads; ++h) {
                const float x = to_float(ba[row * 2 * heads + heads + h]) + dt_bias[h];
                const float d = DeltaDecay{a_log[h]}.gradient(d_g[row * heads + h]);
                line[h] += d * DeltaDecay::softplus(x);
                line[heads + h] += d * sigmoid(x);
              }
            });
  });
}

}  // namespace

void register_delta_gates(KernelTable& table) {
  table.add<DeltaGatesForward, CpuContext, &forward>();
  table.add<DeltaGatesBackwardInput, CpuContext, &backward_input>();
  table.add<DeltaGatesBackwardWeight, CpuContext, &backward_weight, &backward_weight_workspace>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
