#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/situ/formula.h"
#include "turbo/situ/situ.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

void forward(CpuContext& context, const SituForward& a) {
  with_float_type(a.out.dtype, [&](auto tag) {
    using T = decltype(tag);
    with_situ(a.beta, a.linear_beta, [&](const auto activation) {
      const std::int64_t ffn = a.out.cols();
      const T* gate_up = context.data<const T>(a.gate_up);
      T* to = context.data<T>(a.out);
      parallel_ranges(context, a.out.rows(), 3 * ffn * sizeof(T), [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          const T *gate = gate_up + row * 2 * ffn, *up = gate + ffn;
          T* out = to + row * ffn;
          PRIMUS_SIMD()
          for (std::int64_t i = 0; i < ffn; ++i)
            out[i] = from_float<T>(activation.forward(to_float(gate[i]), to_float(up[i])));
        }
      });
    });
  });
}

void backward(CpuContext& context, const SituBackward& a) {
  with_float_type(a.d_out.dtype, [&](auto tag) {
    using T = decltype(tag);
    with_situ(a.beta, a.linear_beta, [&](const auto activation) {
      const std::int64_t ffn = a.d_out.cols();
      const T *gate_up = context.data<const T>(a.gate_up), *d_from = context.data<const T>(a.d_out);
      T* to = context.data<T>(a.d_gate_up);
      parallel_ranges(
          context, a.d_out.rows(), 5 * ffn * sizeof(T), [=](std::int64_t begin, std::int64_t end) {
            for (std::int64_t row = begin; row < end; ++row) {
              const T *gate = gate_up + row * 2 * ffn, *up = gate + ffn, *d_out = d_from + row * ffn;
              T *d_gate = to + row * 2 * ffn, *d_up = d_gate + ffn;
              PRIMUS_SIMD()
              for (std::int64_t i = 0; i < ffn; ++i) {
                const auto d = activation.backward(to_float(gate[i]), to_float(up[i]), to_float(d_out[i]));
                d_gate[i] = from_float<T>(d.gate);
                d_up[i] = from_float<T>(d.up);
              }
            }
          });
    });
  });
}

}  // namespace

void register_situ(KernelTable& table) {
  table.add<SituForward, CpuContext, &forward>();
  table.add<SituBackward, CpuContext, &backward>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
