// The kernels of gated activations. A row of `gate_up` is gates [ffn], then as many values [ffn]. An
// activation has forward(gate, up), and backward(gate, up, d), which returns both gradients (`gate`, `up`).
#pragma once

#include "turbo/cpu/simd.h"

namespace primus::turbo::PRIMUS_CPU_ISA {

// activation_of(row) returns the activation to apply to the row.
template <class Activations>
PRIMUS_INLINE void glu_forward(CpuContext& context, const Tensor& gate_up, const Tensor& to,
                               const Activations activation_of) {
  with_float_type(to.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t ffn = to.cols();
    parallel_ranges(context, to.rows(), 3 * ffn * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* gate = context.data<T>(gate_up) + row * 2 * ffn;
        const T* up = gate + ffn;
        T* out = context.data<T>(to) + row * ffn;
        const auto activation = activation_of(row);
        PRIMUS_SIMD()
        for (std::int64_t i = 0; i < ffn; ++i)
          out[i] = from_float<T>(activation.forward(to_float(gate[i]), to_float(up[i])));
      }
    });
  });
}

template <class Activation>
PRIMUS_INLINE void glu_backward(CpuContext& context, const Tensor& gate_up, const Tensor& d_from,
                                const Tensor& d_gate_up, const Activation activation) {
  with_float_type(d_from.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t ffn = d_from.cols();
    parallel_ranges(context, d_from.rows(), 5 * ffn * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* gate = context.data<T>(gate_up) + row * 2 * ffn;
        const T* up = gate + ffn;
        const T* d_out = context.data<T>(d_from) + row * ffn;
        T* d_gate = context.data<T>(d_gate_up) + row * 2 * ffn;
        T* d_up = d_gate + ffn;
        PRIMUS_SIMD()
        for (std::int64_t i = 0; i < ffn; ++i) {
          const auto d = activation.backward(to_float(gate[i]), to_float(up[i]), to_float(d_out[i]));
          d_gate[i] = from_float<T>(d.gate);
          d_up[i] = from_float<T>(d.up);
        }
      }
    });
  });
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
