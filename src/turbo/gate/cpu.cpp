#include <cmath>
#include <type_traits>

#include "turbo/cpu/reduce.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/gate/formula.h"
#include "turbo/gate/gate.h"
#include "turbo/rms_norm/formula.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// ---- Gates only ---------------------------------------------------------------------------------

void forward(CpuContext& context, const GateForward& a) {
  const bool of_rows = a.gate.cols() == 1;
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    with_float_type(a.gate.dtype, [&](auto gate_tag) {
      const auto* gates = context.data<const decltype(gate_tag)>(a.gate);
      const std::int64_t n = a.x.cols();
      parallel_ranges(context, a.x.rows(), 3 * n * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          const T* x = context.data<const T>(a.x) + row * n;
          T* y = context.data<T>(a.y) + row * n;
          if (of_rows) {
            const float s = sigmoid(to_float(gates[row]));
            PRIMUS_SIMD()
            for (std::int64_t i = 0; i < n; ++i) y[i] = from_float<T>(to_float(x[i]) * s);
          } else {
            const auto* gate = gates + row * n;
            PRIMUS_SIMD()
            for (std::int64_t i = 0; i < n; ++i)
              y[i] = from_float<T>(to_float(x[i]) * sigmoid(to_float(gate[i])));
          }
        }
      });
    });
  });
}

void backward(CpuContext& context, const GateBackward& a) {
  const bool of_rows = a.gate.cols() == 1;
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    with_float_type(a.gate.dtype, [&](auto gate_tag) {
      using G = decltype(gate_tag);
      const G* gates = context.data<const G>(a.gate);
      G* d_gates = context.data<G>(a.d_gate);
      const std::int64_t n = a.x.cols();
      parallel_ranges(context, a.x.rows(), 5 * n * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          const T* x = context.data<const T>(a.x) + row * n;
          const T* d_y = context.data<const T>(a.d_y) + row * n;
          T* d_x = context.data<T>(a.d_x) + row * n;
          if (of_rows) {
            const float s = sigmoid(to_float(gates[row]));
            // Computes the dot product first, because d_x may overwrite d_y.
            const float dot = sum_terms(n, [=](std::int64_t i) { return to_float(d_y[i]) * to_float(x[i]); });
            d_gates[row] = from_float<G>(dot * sigmoid_slope(s));
            PRIMUS_SIMD()
            for (std::int64_t i = 0; i < n; ++i) d_x[i] = from_float<T>(to_float(d_y[i]) * s);
          } else {
            const G* gate = gates + row * n;
            G* d_gate = d_gates + row * n;
            PRIMUS_SIMD()
            for (std::int64_t i = 0; i < n; ++i) {
              const float s = sigmoid(to_float(gate[i])), d = to_float(d_y[i]);
              d_gate[i] = from_float<G>(d * to_float(x[i]) * sigmoid_slope(s));
              d_x[i] = from_float<T>(d * s);
            }
          }
        }
      });
    });
  });
}

// ---- Gates after a head norm ---------------------------------------------------------------------

void norm_forward(CpuContext& context, const GatedNormForward& a) {
  with_type_and_activation(a.x.dtype, a.activation, [&](auto tag, auto act) {
    using T = decltype(tag);
    const std::int64_t dim = a.weight.elements(), heads = a.x.rows() * a.x.cols() / dim;
    const T* weight = context.data<const T>(a.weight);
    parallel_ranges(context, heads, 3 * dim * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t head = begin; head < end; ++head) {
        const T* x = context.data<const T>(a.x) + head * dim;
        const T* gate = context.data<const T>(a.gate) + head * dim;
        T* y = context.data<T>(a.y) + head * dim;
        const float squares = sum_terms(dim, [=](std::int64_t i) { return to_float(x[i]) * to_float(x[i]); });
        const float scale = inverse_rms(squares, dim, a.eps);
        context.data<float>(a.rstd)[head] = scale;
        PRIMUS_SIMD()
        for (std::int64_t i = 0; i < dim; ++i)
          y[i] = from_float<T>(norm_output(to_float(x[i]), scale, to_float(weight[i])) *
                               act.of(to_float(gate[i])));
      }
    });
  });
}

// Computes d_x and d_gate. In the code, g is d_y * act(gate) * weight.
void norm_backward_input(CpuContext& context, const GatedNormBackwardInput& a) {
  with_type_and_activation(a.x.dtype, a.activation, [&](auto tag, auto act) {
    using T = decltype(tag);
    const std::int64_t dim = a.weight.elements(), heads = a.x.rows() * a.x.cols() / dim;
    const T* weight = context.data<const T>(a.weight);
    parallel_ranges(context, heads, 5 * dim * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t head = begin; head < end; ++head) {
        const T* x = context.data<const T>(a.x) + head * dim;
        const T* gate = context.data<const T>(a.gate) + head * dim;
        const T* d_y = context.data<const T>(a.d_y) + head * dim;
        T* d_x = context.data<T>(a.d_x) + head * dim;
        T* d_gate = context.data<T>(a.d_gate) + head * dim;
        const float scale = context.data<const float>(a.rstd)[head];
        const auto g = [=](std::int64_t i) {
          return to_float(d_y[i]) * act.of(to_float(gate[i])) * to_float(weight[i]);
        };
        const float dot = sum_terms(dim, [=](std::int64_t i) { return g(i) * to_float(x[i]); });
        const NormGradient gradient(dot, scale, dim);
        PRIMUS_SIMD()
        for (std::int64_t i = 0; i < dim; ++i) {
          d_gate[i] =
              from_float<T>(to_float(d_y[i]) * norm_output(to_float(x[i]), scale, to_float(weight[i])) *
                            act.slope(to_float(gate[i])));
          d_x[i] = from_float<T>(gradient(g(i), to_float(x[i])));
        }
      }
    });
  });
}

std::int64_t norm_backward_weight_workspace(CpuContext&, const GatedNormBackwardWeight& a) {
  return row_sum_workspace(a.x.rows(), a.d_weight.elements());
}

void norm_backward_weight(CpuContext& context, const GatedNormBackwardWeight& a) {
  with_type_and_activation(a.x.dtype, a.activation, [&](auto tag, auto act) {
    using T = decltype(tag);
    const std::int64_t dim = a.d_weight.elements(), width = a.x.cols();
    const T* x = context.data<const T>(a.x);
    const T* gate = context.data<const T>(a.gate);
    const T* d_y = context.data<const T>(a.d_y);
    const float* rstd = context.data<const float>(a.rstd);
    row_sum(context, a.x.rows(), dim, context.data<float>(a.workspace), a.d_weight, a.accumulate,
            [=](float* line, std::int64_t row) {
              for (std::int64_t head = row * (width / dim); head < (row + 1) * (width / dim); ++head) {
                const std::int64_t at = head * dim;
                const float scale = rstd[head];
                PRIMUS_SIMD()
                for (std::int64_t i = 0; i < dim; ++i) {
                  line[i] +=
                      to_float(d_y[at + i]) * act.of(to_float(gate[at + i])) * (to_float(x[at + i]) * scale);
                }
              }
            });
  });
}

}  // namespace

void register_gate(KernelTable& table) {
  table.add<GateForward, CpuContext, &forward>();
  table.add<GateBackward, CpuContext, &backward>();
  table.add<GatedNormForward, CpuContext, &norm_forward>();
  table.add<GatedNormBackwardInput, CpuContext, &norm_backward_input>();
  table.add<GatedNormBackwardWeight, CpuContext, &norm_backward_weight, &norm_backward_weight_workspace>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
