#include <cmath>

#include "turbo/channel_gate/channel_gate.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// Returns log(1 + e^x), without overflow for large x and without cancellation for small x.
PRIMUS_DEVICE float softplus(float x) { return ::fmaxf(x, 0.0F) + ::log1pf(::expf(x > 0 ? -x : x)); }

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

  // exp(a_log) of the channel at column i of a row.
  PRIMUS_DEVICE float rate(std::int64_t i) const { return ::expf(a_log[i / channels]); }
  PRIMUS_DEVICE float x(std::int64_t row, std::int64_t i) const {
    return to_float(z[row * width + i]) + bias[i];
  }
  PRIMUS_DEVICE float gate(std::int64_t row, std::int64_t i) const {
    const float v = x(row, i);
    return lower_bound < 0 ? lower_bound * sigmoid(rate(i) * v) : -rate(i) * softplus(v);
  }
  PRIMUS_DEVICE float slope(std::int64_t row, std::int64_t i) const {
    const float v = x(row, i), r = rate(i);
    if (lower_bound == 0) return -r * sigmoid(v);
    const float s = sigmoid(r * v);
    return lower_bound * (s * (1.0F - s)) * r;
  }
  // The derivative of the gate with respect to a_log.
  PRIMUS_DEVICE float slope_of_rate(std::int64_t row, std::int64_t i) const {
    return lower_bound < 0 ? slope(row, i) * x(row, i) : gate(row, i);
  }
};

// Handles the channels of a row, then its heads.
template <class T>
struct Forward {
  Gates<T> of;
  float *g, *beta;

  PRIMUS_DEVICE void operator()(std::int64_t at) const {
    const std::int64_t row = at / (of.width + of.heads), i = at % (of.width + of.heads);
    if (i < of.width) {
      g[row * of.width + i] = of.gate(row, i);
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
      d_z[row * of.width + i] = from_float<T>(d_g[row * of.width + i] * of.slope(row, i));
    } else {
      const std::int64_t head = row * of.heads + i - of.width;
      const float s = sigmoid(to_float(of.b[head]));
      d_b[head] = from_float<T>(d_beta[head] * (s * (1.0F - s)));
    }
  }
};

template <class T>
struct WeightTerm {
  static constexpr int kCount = 1;
  Gates<T> of;
  const float* d_g;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t i, float (&value)[kCount]) const {
    if (i < of.width) {
      value[0] = d_g[row * of.width + i] * of.slope(row, i);
      return;
    }
    value[0] = 0;
    const std::int64_t begin = (i - of.width) * of.channels;
    for (std::int64_t c = begin; c < begin + of.channels; ++c)
      value[0] = multiply_add(d_g[row * of.width + c], of.slope_of_rate(row, c), value[0]);
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

std::int64_t weight_workspace(Context&, const ChannelGateBackwardWeight& a) {
  return row_sum_workspace(a.of.z.rows(), a.d_weight.elements());
}

void backward_weight(Context& context, const ChannelGateBackwardWeight& a) {
  with_float_type(a.of.z.dtype, [&](auto tag) {
    using T = decltype(tag);
    row_sum(context, a.of.z.rows(), a.d_weight.elements(), context.data<float>(a.workspace), a.d_weight,
            false, WeightTerm<T>{Gates<T>(context, a.of), context.data<float>(a.d_g)});
  });
}

struct Bias {
  float* x;
  double low, range;
  PRIMUS_DEVICE void operator()(std::int64_t i) const {
    constexpr double kRootHalf = 0.70710678118654752440;
    const double rate = ::exp(low + range * (0.5 * ::erfc(-static_cast<double>(x[i]) * kRootHalf)));
    x[i] = static_cast<float>(rate + ::log(-::expm1(-rate)));
  }
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
