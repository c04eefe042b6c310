#include "turbo/delta_gates/delta_gates.h"
#include "turbo/delta_gates/formula.h"
#include "turbo/gate/formula.h"
#include "turbo/gpu/loops.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// The inputs of the gates.
template <class T>
struct Inputs {
  const T* ba;
  const float *a_log, *dt_bias;
  std::int64_t heads;

  template <class Arguments>
  Inputs(Context& context, const Arguments& a)
      : ba(context.data<T>(a.ba)),
        a_log(context.data<float>(a.a_log)),
        dt_bias(context.data<float>(a.dt_bias)),
        heads(a.ba.cols() / 2) {}

  PRIMUS_DEVICE float b(std::int64_t row, std::int64_t h) const { return to_float(ba[row * 2 * heads + h]); }
  PRIMUS_DEVICE float a(std::int64_t row, std::int64_t h) const {
    return to_float(ba[row * 2 * heads + heads + h]) + dt_bias[h];
  }
};

template <class T>
struct ForwardBody {
  Inputs<T> in;
  float *g, *beta;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t h) const {
    beta[row * in.heads + h] = sigmoid(in.b(row, h));
    g[row * in.heads + h] = DeltaDecay{in.a_log[h]}.value(in.a(row, h));
  }
};

void forward(Context& context, const DeltaGatesForward& a) {
  with_float_type(a.ba.dtype, [&](auto tag) {
    using T = decltype(tag);
    for_each_of_rows<1>(
        context, a.ba.rows(), a.ba.cols() / 2,
        ForwardBody<T>{Inputs<T>(context, a), context.data<float>(a.g), context.data<float>(a.beta)});
  });
}

template <class T>
struct BackwardBody {
  Inputs<T> in;
  const float *d_g, *d_beta;
  T* d_ba;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t h) const {
    const float s = sigmoid(in.b(row, h)), of_a = sigmoid(in.a(row, h));
    const std::int64_t at = row * in.heads + h;
    d_ba[row * 2 * in.heads + h] = from_float<T>(d_beta[at] * sigmoid_slope(s));
    d_ba[row * 2 * in.heads + in.heads + h] = from_float<T>(DeltaDecay{in.a_log[h]}.gradient(d_g[at]) * of_a);
  }
};

void backward_input(Context& context, const DeltaGatesBackwardInput& a) {
  with_float_type(a.ba.dtype, [&](auto tag) {
    using T = decltype(tag);
    for_each_of_rows<1>(context, a.ba.rows(), a.ba.cols() / 2,
                        BackwardBody<T>{Inputs<T>(context, a), context.data<float>(a.d_g),
                                        context.data<float>(a.d_beta), context.data<T>(a.d_ba)});
  });
}

template <class T>
struct WeightTerm {
  static constexpr int kCount = 1;
  Inputs<T> in;
  const float* d_g;

  // The first columns are gradients of a_log, the following columns are gradients of dt_bias.
  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t i, float (&value)[kCount]) const {
    const std::int64_t h = i % in.heads;
    const float x = in.a(row, h), d = DeltaDecay{in.a_log[h]}.gradient(d_g[row * in.heads + h]);
    value[0] = d * (i < in.heads ? DeltaDecay::softplus(x) : sigmoid(x));
  }
};

std::int64_t backward_weight_workspace(Context&, const DeltaGatesBackwardWeight& a) {
  return row_sum_workspace(a.ba.rows(), a.ba.cols());
}

void backward_weight(Context& context, const DeltaGatesBackwardWeight& a) {
  with_float_type(a.ba.dtype, [&](auto tag) {
    using T = decltype(tag);
    row_sum(context, a.ba.rows(), a.ba.cols(), context.data<float>(a.workspace), a.d_weights, false,
            WeightTerm<T>{Inputs<T>(context, a), context.data<float>(a.d_g)});
  });
}

}  // namespace

void register_delta_gates(KernelTable& table) {
  table.add<DeltaGatesForward, Context, &forward>();
  table.add<DeltaGatesBackwardInput, Context, &backward_input>();
  table.add<DeltaGatesBackwardWeight, Context, &backward_weight, &backward_weight_workspace>();
}

}  // namespace primus::turbo::PRIMUS_GPU
