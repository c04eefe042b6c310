#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/swiglu/swiglu.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

void forward(CpuContext& context, const SwigluForward& a) {
  with_float_type(a.out.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t ffn = a.out.cols();
    parallel_ranges(context, a.out.rows(), 3 * ffn * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* gate = context.data<T>(a.gate_up) + row * 2 * ffn;
        const T* up = gate + ffn;
        T* out = context.data<T>(a.out) + row * ffn;
        PRIMUS_SIMD()
        for (std::int64_t i = 0; i < ffn; ++i) {
          const float g = to_float(gate[i]);
          out[i] = from_float<T>(g * sigmoid(g) * to_float(up[i]));
        }
      }
    });
  });
}

// silu'(g) = s * (1 + g * (1 - s)) with s = sigmoid(g). The sigmoid is computed again: cheaper than keeping
// it.
void backward(CpuContext& context, const SwigluBackward& a) {
  with_float_type(a.d_out.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t ffn = a.d_out.cols();
    parallel_ranges(context, a.d_out.rows(), 5 * ffn * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* gate = context.data<T>(a.gate_up) + row * 2 * ffn;
        const T* up = gate + ffn;
        const T* d_out = context.data<T>(a.d_out) + row * ffn;
        T* d_gate = context.data<T>(a.d_gate_up) + row * 2 * ffn;
        T* d_up = d_gate + ffn;
        PRIMUS_SIMD()
        for (std::int64_t i = 0; i < ffn; ++i) {
          const float g = to_float(gate[i]), u = to_float(up[i]), d = to_float(d_out[i]);
          const float s = sigmoid(g);
          d_gate[i] = from_float<T>(d * u * (s * (1.0F + g * (1.0F - s))));
          d_up[i] = from_float<T>(d * (g * s));
        }
      }
    });
  });
}

}  // namespace

void register_swiglu(KernelTable& table) {
  table.add<SwigluForward, CpuContext, &forward>();
  table.add<SwigluBackward, CpuContext, &backward>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
