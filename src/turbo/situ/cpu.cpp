#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/situ/situ.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// The function of `up`, and its slope.
template <bool kClamped>
struct Up {
  float bound;
  PRIMUS_INLINE float value(float up) const { return kClamped ? soft_cap(up, bound) : up; }
  PRIMUS_INLINE float slope(float value) const { return kClamped ? soft_cap_slope(value, bound) : 1.0F; }
};

template <class Body>
PRIMUS_INLINE void with_up(float linear_beta, Body&& body) {
  if (linear_beta > 0) {
    body(Up<true>{linear_beta});
  } else {
    body(Up<false>{0});
  }
}

void forward(CpuContext& context, const SituForward& a) {
  with_float_type(a.out.dtype, [&](auto tag) {
    using T = decltype(tag);
    with_up(a.linear_beta, [&](const auto of_up) {
      const std::int64_t ffn = a.out.cols();
      const T* gate_up = context.data<const T>(a.gate_up);
      T* to = context.data<T>(a.out);
      const float beta = a.beta;
      parallel_ranges(context, a.out.rows(), 3 * ffn * sizeof(T), [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          const T *gate = gate_up + row * 2 * ffn, *up = gate + ffn;
          T* out = to + row * ffn;
          PRIMUS_SIMD()
          for (std::int64_t i = 0; i < ffn; ++i) {
            const float g = to_float(gate[i]);
            out[i] = from_float<T>(soft_cap(g, beta) * sigmoid(g) * of_up.value(to_float(up[i])));
          }
        }
      });
    });
  });
}

void backward(CpuContext& context, const SituBackward& a) {
  with_float_type(a.d_out.dtype, [&](auto tag) {
    using T = decltype(tag);
    with_up(a.linear_beta, [&](const auto of_up) {
      const std::int64_t ffn = a.d_out.cols();
      const T *gate_up = context.data<const T>(a.gate_up), *d_from = context.data<const T>(a.d_out);
      T* to = context.data<T>(a.d_gate_up);
      const float beta = a.beta;
      parallel_ranges(
          context, a.d_out.rows(), 5 * ffn * sizeof(T), [=](std::int64_t begin, std::int64_t end) {
            for (std::int64_t row = begin; row < end; ++row) {
              const T *gate = gate_up + row * 2 * ffn, *up = gate + ffn, *d_out = d_from + row * ffn;
              T *d_gate = to + row * 2 * ffn, *d_up = d_gate + ffn;
              PRIMUS_SIMD()
              for (std::int64_t i = 0; i < ffn; ++i) {
                const float g = to_float(gate[i]), s = sigmoid(g), c = soft_cap(g, beta);
                const float u = of_up.value(to_float(up[i])), d = to_float(d_out[i]);
                d_gate[i] = from_float<T>(d * u * s * (soft_cap_slope(c, beta) + c * (1.0F - s)));
                d_up[i] = from_float<T>(d * c * s * of_up.slope(u));
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
