#include <cmath>

#include "turbo/channel_gate/channel_gate.h"
#include "turbo/channel_gate/formula.h"
#include "turbo/gate/formula.h"
#include "turbo/gpu/loops.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

template <class T>
struct Gates {
  const T *z, *b;
  const float *a_log, *bias;
  std::int64_t heads, channels, width;
  float lower_bound;

  Gates(Context& context, const ChannelGates& of)
      : z(context.data<T>(of.z)),
        b(context.data<T>(of.b)),
        a_log(context.data<float>(of.a_log)),
        bias(context.data<float>(of.bias)),
        heads(of.heads()),
        channels(of.channels()),
        width(heads * channels),
        lower_bound(of.lower_bound) {}

  PRIMUS_DEVICE float x(std::int64_t row, std::int64_t i) const {
    return to_float(z[row * width + i]) + bias[i];
  }
  // Returns the decay of the channel at column i of a row.
  PRIMUS_DEVICE ChannelDecay decay(std::int64_t i) const {
    return {::expf(a_log[i / channels]), lower_bound};
  }
};

// Processes the channels of a row, then its heads.
template <class T>
struct Forward {
  Gates<T> of;
  float *g, *beta;

  PRIMUS_DEVICE void operator()(std::int64_t at) const {
    const std::int64_t row = at / (of.width + of.heads), i = at % (of.width + of.heads);
    if (i < of.width) {
      g[row * of.width + i] = of.decay(i).value(of.x(row, i));
    } else {
      const std::int64_t head = row * of.heads + i - of.width;
      beta[head] = sigmoid(to_float(of.b[head]));
    }
  }
};

template <class T>
struct Backward {
  Gates<T> of;
  const float *d_g, *d_beta;
  T *d_z, *d_b;

  PRIMUS_DEVICE void operator()(std::int64_t at) const {
    const std::int64_t row = at / (of.width + of.heads), i = at % (of.width + of.heads);
    if (i < of.width) {
      d_z[row * of.width + i] = from_float<T>(d_g[row * of.width + i] * of.decay(i).slope(of.x(row, i)));
    } else {
      const std::int64_t head = row * of.heads + i - of.width;
      const float s = sigmoid(to_float(of.b[head]));
      d_b[head] = from_float<T>(d_beta[head] * sigmoid_slope(s));
    }
  }
};

// The gradients of a row with respect to the biases, then with respect to the rate of each channel.
template <class T>
struct WeightTerm {
  static constexpr int kCount = 1;
  Gates<T> of;
  const float* d_g;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t at, float (&value)[kCount]) const {
    const std::int64_t i = at % of.width;
    const ChannelDecay decay = of.decay(i);
    const float x = of.x(row, i);
    value[0] = d_g[row * of.width + i] * (at < of.width ? decay.slope(x) : decay.slope_of_rate(x));
  }
};

// Copies the gradients of the biases, and sums the gradients of the rates over the channels of each head.
struct WeightSums {
  const float* sums;  // [2 * width]
  float* d_weight;
  std::int64_t width, channels;

  PRIMUS_DEVICE void operator()(std::int64_t i) const {
    if (i < width) {
      d_weight[i] = sums[i];
      return;
    }
    const float* const rates = sums + width + (i - width) * channels;
    float sum = 0;
    PRIMUS_UNROLL_BY(8)
    for (std::int64_t c = 0; c < channels; ++c) sum += rates[c];
    d_weight[i] = sum;
  }
};

std::int64_t elements(const ChannelGates& of) { return of.z.rows() * (of.z.cols() + of.heads()); }

void forward(Context& context, const ChannelGateForward& a) {
  with_float_type(a.of.z.dtype, [&](auto tag) {
    using T = decltype(tag);
    for_each(context, elements(a.of),
             Forward<T>{Gates<T>(context, a.of), context.data<float>(a.g), context.data<float>(a.beta)});
  });
}

void backward(Context& context, const ChannelGateBackward& a) {
  with_float_type(a.of.z.dtype, [&](auto tag) {
    using T = decltype(tag);
    for_each(context, elements(a.of),
             Backward<T>{Gates<T>(context, a.of), context.data<float>(a.d_g), context.data<float>(a.d_beta),
                         context.data<T>(a.d_z), context.data<T>(a.d_b)});
  });
}

// The workspace has the sums of the terms, and then the sums of the slices of rows.
std::int64_t weight_workspace(Context&, const ChannelGateBackwardWeight& a) {
  const std::int64_t columns = 2 * a.of.z.cols();
  return columns * static_cast<std::int64_t>(sizeof(float)) + row_sum_workspace(a.of.z.rows(), columns);
}

void backward_weight(Context& context, const ChannelGateBackwardWeight& a) {
  const std::int64_t width = a.of.z.cols();
  auto* const sums = context.data<float>(a.workspace);
  with_float_type(a.of.z.dtype, [&](auto tag) {
    using T = decltype(tag);
    row_sum(context, a.of.z.rows(), 2 * width, sums + 2 * width,
            Tensor(a.workspace.data, DType::kF32, {2 * width}), false,
            WeightTerm<T>{Gates<T>(context, a.of), context.data<float>(a.d_g)});
  });
  for_each(context, width + a.of.heads(),
           WeightSums{sums, context.data<float>(a.d_weight), width, a.of.channels()});
}

struct Bias {
  float* x;
  double low, range;
  PRIMUS_DEVICE void operator()(std::int64_t i) const { x[i] = rate_bias(x[i], low, range); }
};

void bias(Context& context, const ChannelGateBias& a) {
  const double low = std::log(static_cast<double>(a.low));
  for_each(context, a.x.elements(),
           Bias{context.data<float>(a.x), low, std::log(static_cast<double>(a.high)) - low});
}

}  // namespace

void register_channel_gate(KernelTable& table) {
  table.add<ChannelGateForward, Context, &forward>();
  table.add<ChannelGateBackward, Context, &backward>();
  table.add<ChannelGateBackwardWeight, Context, &backward_weight, &weight_workspace>();
  table.add<ChannelGateBias, Context, &bias>();
}

}  // namespace primus::turbo::PRIMUS_GPU
