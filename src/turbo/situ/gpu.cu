#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/situ/formula.h"
#include "turbo/situ/situ.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

template <class T, int kCount, class Activation>
struct Forward {
  const T* gate_up;
  T* out;
  std::int64_t ffn;
  Activation activation;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t i) const {
    float g[kCount], u[kCount];
    load<kCount>(gate_up + row * 2 * ffn + i, g);
    load<kCount>(gate_up + row * 2 * ffn + ffn + i, u);
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) u[k] = activation.forward(g[k], u[k]);
    store<kCount>(out + row * ffn + i, u);
  }
};

template <class T, int kCount, class Activation>
struct Backward {
  const T *gate_up, *d_out;
  T* d_gate_up;
  std::int64_t ffn;
  Activation activation;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t i) const {
    float g[kCount], u[kCount], d[kCount];
    load<kCount>(gate_up + row * 2 * ffn + i, g);
    load<kCount>(gate_up + row * 2 * ffn + ffn + i, u);
    load<kCount>(d_out + row * ffn + i, d);
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) {
      const auto of = activation.backward(g[k], u[k], d[k]);
      g[k] = of.gate;
      u[k] = of.up;
    }
    store<kCount>(d_gate_up + row * 2 * ffn + i, g);
    store<kCount>(d_gate_up + row * 2 * ffn + ffn + i, u);
  }
};

void forward(Context& context, const SituForward& a) {
  with_float_type(a.out.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T* gate_up = context.data<T>(a.gate_up);
    T* out = context.data<T>(a.out);
    const std::int64_t ffn = a.out.cols();
    with_situ(a.beta, a.linear_beta, [&](auto activation) {
      with_vector<T>(rows_of_vectors<T>(ffn, gate_up, out), [&](auto count) {
        for_each_of_rows<count>(context, a.out.rows(), ffn,
                                Forward<T, count, decltype(activation)>{gate_up, out, ffn, activation});
      });
    });
  });
}

void backward(Context& context, const SituBackward& a) {
  with_float_type(a.d_out.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T *gate_up = context.data<T>(a.gate_up), *d_out = context.data<T>(a.d_out);
    T* d_gate_up = context.data<T>(a.d_gate_up);
    const std::int64_t ffn = a.d_out.cols();
    with_situ(a.beta, a.linear_beta, [&](auto activation) {
      with_vector<T>(rows_of_vectors<T>(ffn, gate_up, d_out, d_gate_up), [&](auto count) {
        for_each_of_rows<count>(
            context, a.d_out.rows(), ffn,
            Backward<T, count, decltype(activation)>{gate_up, d_out, d_gate_up, ffn, activation});
      });
    });
  });
}

}  // namespace

void register_situ(KernelTable& table) {
  table.add<SituForward, Context, &forward>();
  table.add<SituBackward, Context, &backward>();
}

}  // namespace primus::turbo::PRIMUS_GPU
