// A warp processes one row, or one head of one token. In the forward pass of gates only, a thread processes
// some columns.
#include <type_traits>

#include "turbo/gate/formula.h"
#include "turbo/gate/gate.h"
#include "turbo/gpu/loops.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/rms_norm/formula.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// Calls body(item) for all items, with one warp per item.
template <class Body>
struct EachByWarp {
  static constexpr int kThreads = 256, kWarps = kThreads / kWarp;
  Body body;
  std::int64_t items;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t item = block() * kWarps + warp();
    if (item < items) body(item);
  }
};
template <class Body>
void for_each_by_warp(Context& context, std::int64_t items, const Body& body) {
  launch(context, blocks_for(items, EachByWarp<Body>::kWarps), EachByWarp<Body>{body, items});
}

// ---- Gates only ---------------------------------------------------------------------------------

template <class T, class G, bool kOfRows, int kCount>
struct ForwardBody {
  const T* x;
  const G* gate;
  T* y;
  std::int64_t n;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t i) const {
    const std::int64_t at = row * n + i;
    float v[kCount], g[kCount];
    load<kCount>(x + at, v);
    if constexpr (kOfRows) {
      const float of_row = sigmoid(to_float(gate[row]));
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) g[k] = of_row;
    } else {
      load<kCount>(gate + at, g);
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) g[k] = sigmoid(g[k]);
    }
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) v[k] *= g[k];
    store<kCount>(y + at, v);
  }
};

template <class T, class G, bool kOfRows>
struct BackwardBody {
  const T* x;
  const G* gate;
  const T* d_y;
  T* d_x;
  G* d_gate;
  std::int64_t n;

  PRIMUS_DEVICE void operator()(std::int64_t row) const {
    const float of_row = kOfRows ? sigmoid(to_float(gate[row])) : 0.0F;
    float dot = 0;
    for (std::int64_t i = row * n + lane(); i < (row + 1) * n; i += kWarp) {
      const float s = kOfRows ? of_row : sigmoid(to_float(gate[i])), d = to_float(d_y[i]), v = to_float(x[i]);
      if constexpr (kOfRows) {
        dot = multiply_add(d, v, dot);
      } else {
        d_gate[i] = from_float<G>(d * v * sigmoid_slope(s));
      }
      d_x[i] = from_float<T>(d * s);
    }
    if constexpr (kOfRows) {
      dot = warp_reduce(dot);
      if (lane() == 0) d_gate[row] = from_float<G>(dot * sigmoid_slope(of_row));
    }
  }
};

// Calls body(type of x, type of the gate, whether there is one gate per row).
template <class Arguments, class Body>
void with_gate(const Arguments& a, Body body) {
  with_float_type(a.x.dtype, [&](auto tag) {
    if (a.gate.cols() != 1) return body(tag, tag, std::false_type());
    with_float_type(a.gate.dtype, [&](auto gate) { body(tag, gate, std::true_type()); });
  });
}

void forward(Context& context, const GateForward& a) {
  with_gate(a, [&](auto tag, auto gate, auto of_rows) {
    using T = decltype(tag);
    using G = decltype(gate);
    const T* const x = context.data<T>(a.x);
    const G* const gates = context.data<G>(a.gate);
    T* const y = context.data<T>(a.y);
    const std::int64_t n = a.x.cols();
    const bool whole = rows_of_vectors<T>(n, x, y) && (of_rows || rows_of_vectors<T>(n, gates));
    with_vector<T>(whole, [&](auto count) {
      for_each_of_rows<count>(context, a.x.rows(), n, ForwardBody<T, G, of_rows, count>{x, gates, y, n});
    });
  });
}

void backward(Context& context, const GateBackward& a) {
  with_gate(a, [&](auto tag, auto gate, auto of_rows) {
    using T = decltype(tag);
    using G = decltype(gate);
    for_each_by_warp(
        context, a.x.rows(),
        BackwardBody<T, G, of_rows>{context.data<T>(a.x), context.data<G>(a.gate), context.data<T>(a.d_y),
                                    context.data<T>(a.d_x), context.data<G>(a.d_gate), a.x.cols()});
  });
}

// ---- Gates after a head norm --------------------------------------------------------------------

template <class T, class Act>
struct NormForwardBody {
  const T *x, *gate, *weight;
  T* y;
  float* rstd;
  std::int64_t dim;
  float eps;

  PRIMUS_DEVICE void operator()(std::int64_t head) const {
    const std::int64_t at = head * dim;
    float squares = 0;
    for (std::int64_t i = lane(); i < dim; i += kWarp) {
      const float v = to_float(x[at + i]);
      squares = multiply_add(v, v, squares);
    }
    squares = warp_reduce(squares);
    const float scale = inverse_rms(squares, dim, eps);
    if (lane() == 0) rstd[head] = scale;
    for (std::int64_t i = lane(); i < dim; i += kWarp) {
      y[at + i] = from_float<T>(norm_output(to_float(x[at + i]), scale, to_float(weight[i])) *
                                Act::of(to_float(gate[at + i])));
    }
  }
};

void norm_forward(Context& context, const GatedNormForward& a) {
  with_type_and_activation(a.x.dtype, a.activation, [&](auto tag, auto act) {
    using T = decltype(tag);
    const std::int64_t dim = a.weight.elements();
    for_each_by_warp(context, a.x.elements() / dim,
                     NormForwardBody<T, decltype(act)>{context.data<T>(a.x), context.data<T>(a.gate),
                                                       context.data<T>(a.weight), context.data<T>(a.y),
                                                       context.data<float>(a.rstd), dim, a.eps});
  });
}

// Computes d_x and d_gate. In the code, g is d_y * act(gate) * weight.
template <class T, class Act>
struct NormBackwardBody {
  const T *x, *gate, *weight;
  const float* rstd;
  const T* d_y;
  T *d_x, *d_gate;
  std::int64_t dim;

  PRIMUS_DEVICE float gradient(std::int64_t at, std::int64_t i) const {
    return to_float(d_y[at + i]) * Act::of(to_float(gate[at + i])) * to_float(weight[i]);
  }
  PRIMUS_DEVICE void operator()(std::int64_t head) const {
    const std::int64_t at = head * dim;
    const float scale = rstd[head];
    float dot = 0;
    for (std::int64_t i = lane(); i < dim; i += kWarp)
      dot = multiply_add(gradient(at, i), to_float(x[at + i]), dot);
    dot = warp_reduce(dot);
    const NormGradient of_x(dot, scale, dim);
    for (std::int64_t i = lane(); i < dim; i += kWarp) {
      const float v = to_float(x[at + i]);
      d_gate[at + i] = from_float<T>(to_float(d_y[at + i]) * norm_output(v, scale, to_float(weight[i])) *
                                     Act::slope(to_float(gate[at + i])));
      d_x[at + i] = from_float<T>(of_x(gradient(at, i), v));
    }
  }
};

void norm_backward_input(Context& context, const GatedNormBackwardInput& a) {
  with_type_and_activation(a.x.dtype, a.activation, [&](auto tag, auto act) {
    using T = decltype(tag);
    const std::int64_t dim = a.weight.elements();
    for_each_by_warp(context, a.x.elements() / dim,
                     NormBackwardBody<T, decltype(act)>{
                         context.data<T>(a.x), context.data<T>(a.gate), context.data<T>(a.weight),
                         context.data<float>(a.rstd), context.data<T>(a.d_y), context.data<T>(a.d_x),
                         context.data<T>(a.d_gate), dim});
  });
}

template <class T, class Act>
struct NormWeightTerm {
  static constexpr int kCount = 1;
  const T *x, *gate, *d_y;
  const float* rstd;
  std::int64_t heads, dim;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t i, float (&value)[kCount]) const {
    float sum = 0;
    for (std::int64_t head = row * heads; head < (row + 1) * heads; ++head) {
      const std::int64_t at = head * dim + i;
      sum += to_float(d_y[at]) * Act::of(to_float(gate[at])) * (to_float(x[at]) * rstd[head]);
    }
    value[0] = sum;
  }
};

std::int64_t norm_backward_weight_workspace(Context&, const GatedNormBackwardWeight& a) {
  return row_sum_workspace(a.x.rows(), a.d_weight.elements());
}

void norm_backward_weight(Context& context, const GatedNormBackwardWeight& a) {
  with_type_and_activation(a.x.dtype, a.activation, [&](auto tag, auto act) {
    using T = decltype(tag);
    const std::int64_t dim = a.d_weight.elements();
    row_sum(context, a.x.rows(), dim, context.data<float>(a.workspace), a.d_weight, a.accumulate,
            NormWeightTerm<T, decltype(act)>{context.data<T>(a.x), context.data<T>(a.gate),
                                             context.data<T>(a.d_y), context.data<float>(a.rstd),
                                             a.x.cols() / dim, dim});
  });
}

}  // namespace

void register_gate(KernelTable& table) {
  table.add<GateForward, Context, &forward>();
  table.add<GateBackward, Context, &backward>();
  table.add<GatedNormForward, Context, &norm_forward>();
  table.add<GatedNormBackwardInput, Context, &norm_backward_input>();
  table.add<GatedNormBackwardWeight, Context, &norm_backward_weight, &norm_backward_weight_workspace>();
}

}  // namespace primus::turbo::PRIMUS_GPU
