// The kernels of gated activations. A row of `gate_up` is gates [ffn], then as many values [ffn]. An
// activation has forward(gate, up), and backward(gate, up, d), which returns both gradients (`gate`, `up`).
#pragma once

#include "turbo/gpu/loops.h"

namespace primus::turbo::PRIMUS_GPU {

template <class T, int kCount, class Activation>
struct GluForwardBody {
  const T* gate_up;
  T* out;
  std::int64_t ffn;
  Activation activation;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t i) const {
    float g[kCount], u[kCount];
    load<kCount>(gate_up + row * 2 * ffn + i, g);
    load<kCount>(gate_up + row * 2 * ffn + ffn + i, u);
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) g[k] = activation.forward(g[k], u[k]);
    store<kCount>(out + row * ffn + i, g);
  }
};

template <class T, int kCount, class Activation>
struct GluBackwardBody {
  const T *gate_up, *d_out;
  T* d_gate_up;
  std::int64_t ffn;
  Activation activation;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t i) const {
    const std::int64_t gate = row * 2 * ffn + i, up = gate + ffn;
    float g[kCount], u[kCount], d[kCount];
    load<kCount>(gate_up + gate, g);
    load<kCount>(gate_up + up, u);
    load<kCount>(d_out + row * ffn + i, d);
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) {
      const auto of = activation.backward(g[k], u[k], d[k]);
      g[k] = of.gate;
      u[k] = of.up;
    }
    store<kCount>(d_gate_up + gate, g);
    store<kCount>(d_gate_up + up, u);
  }
};

template <class Activation>
void glu_forward(Context& context, const Tensor& gate_up, const Tensor& out, const Activation& activation) {
  with_float_type(out.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T* from = context.data<T>(gate_up);
    T* to = context.data<T>(out);
    with_vector<T>(rows_of_vectors<T>(out.cols(), from, to), [&](auto count) {
      for_each_of_rows<count>(context, out.rows(), out.cols(),
                              GluForwardBody<T, count, Activation>{from, to, out.cols(), activation});
    });
  });
}

template <class Activation>
void glu_backward(Context& context, const Tensor& gate_up, const Tensor& d_out, const Tensor& d_gate_up,
                  const Activation& activation) {
  with_float_type(d_out.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T *from = context.data<T>(gate_up), *d = context.data<T>(d_out);
    T* to = context.data<T>(d_gate_up);
    with_vector<T>(rows_of_vectors<T>(d_out.cols(), from, d, to), [&](auto count) {
      for_each_of_rows<count>(context, d_out.rows(), d_out.cols(),
                              GluBackwardBody<T, count, Activation>{from, d, to, d_out.cols(), activation});
    });
  });
}

}  // namespace primus::turbo::PRIMUS_GPU
