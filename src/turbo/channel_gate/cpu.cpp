#include <cmath>

#include "turbo/channel_gate/channel_gate.h"
#include "turbo/channel_gate/formula.h"
#include "turbo/cpu/reduce.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/gate/formula.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

void forward(CpuContext& context, const ChannelGateForward& a) {
  with_float_type(a.of.z.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t heads = a.of.heads(), channels = a.of.channels(), width = heads * channels;
    const T *z = context.data<const T>(a.of.z), *b = context.data<const T>(a.of.b);
    const float *a_log = context.data<const float>(a.of.a_log), *bias = context.data<const float>(a.of.bias);
    float *g = context.data<float>(a.g), *beta = context.data<float>(a.beta);
    parallel_ranges(context, a.of.z.rows(), 2 * width * sizeof(float),
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t row = begin; row < end; ++row) {
                        for (std::int64_t head = 0; head < heads; ++head) {
                          const ChannelDecay gate{exp(a_log[head]), a.of.lower_bound};
                          for (std::int64_t i = head * channels; i < (head + 1) * channels; ++i)
                            g[row * width + i] = gate.value(to_float(z[row * width + i]) + bias[i]);
                          beta[row * heads + head] = sigmoid(to_float(b[row * heads + head]));
                        }
                      }
                    });
  });
}

void backward(CpuContext& context, const ChannelGateBackward& a) {
  with_float_type(a.of.z.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t heads = a.of.heads(), channels = a.of.channels(), width = heads * channels;
    const T *z = context.data<const T>(a.of.z), *b = context.data<const T>(a.of.b);
    const float *a_log = context.data<const float>(a.of.a_log), *bias = context.data<const float>(a.of.bias);
    const float *d_g = context.data<const float>(a.d_g), *d_beta = context.data<const float>(a.d_beta);
    T *d_z = context.data<T>(a.d_z), *d_b = context.data<T>(a.d_b);
    parallel_ranges(context, a.of.z.rows(), 3 * width * sizeof(float),
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t row = begin; row < end; ++row) {
                        for (std::int64_t head = 0; head < heads; ++head) {
                          const ChannelDecay gate{exp(a_log[head]), a.of.lower_bound};
                          for (std::int64_t i = head * channels; i < (head + 1) * channels; ++i) {
                            const std::int64_t at = row * width + i;
                            d_z[at] = from_float<T>(d_g[at] * gate.slope(to_float(z[at]) + bias[i]));
                          }
                          const std::int64_t at = row * heads + head;
                          const float s = sigmoid(to_float(b[at]));
                          d_b[at] = from_float<T>(d_beta[at] * sigmoid_slope(s));
                        }
                      }
                    });
  });
}

std::int64_t weight_workspace(CpuContext&, const ChannelGateBackwardWeight& a) {
  return row_sum_workspace(a.of.z.rows(), a.d_weight.elements());
}

void backward_weight(CpuContext& context, const ChannelGateBackwardWeight& a) {
  with_float_type(a.of.z.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t heads = a.of.heads(), channels = a.of.channels(), width = heads * channels;
    const T* z = context.data<const T>(a.of.z);
    const float *a_log = context.data<const float>(a.of.a_log), *bias = context.data<const float>(a.of.bias);
    const float* d_g = context.data<const float>(a.d_g);
    row_sum(context, a.of.z.rows(), width + heads, context.data<float>(a.workspace), a.d_weight, false,
            [&](float* line, std::int64_t row) {
              for (std::int64_t head = 0; head < heads; ++head) {
                const ChannelDecay gate{exp(a_log[head]), a.of.lower_bound};
                for (std::int64_t i = head * channels; i < (head + 1) * channels; ++i) {
                  const float x = to_float(z[row * width + i]) + bias[i];
                  line[i] += d_g[row * width + i] * gate.slope(x);
                  line[width + head] += d_g[row * width + i] * gate.slope_of_rate(x);
                }
              }
            });
  });
}

void bias(CpuContext& context, const ChannelGateBias& a) {
  float* x = context.data<float>(a.x);
  const double low = std::log(static_cast<double>(a.low)),
               range = std::log(static_cast<double>(a.high)) - low;
  parallel_ranges(context, a.x.elements(), 64 * sizeof(float), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) x[i] = rate_bias(x[i], low, range);
  });
}

}  // namespace

void register_channel_gate(KernelTable& table) {
  table.add<ChannelGateForward, CpuContext, &forward>();
  table.add<ChannelGateBackward, CpuContext, &backward>();
  table.add<ChannelGateBackwardWeight, CpuContext, &backward_weight, &weight_workspace>();
  table.add<ChannelGateBias, CpuContext, &bias>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
