#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/situ/situ.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

template <class T, int kCount>
struct Forward {
  const T* gate_up;
  T* out;
  std::int64_t ffn;
  float beta, linear_beta;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t i) const {
    float g[kCount], u[kCount];
    load<kCount>(gate_up + row * 2 * ffn + i, g);
    load<kCount>(gate_up + row * 2 * ffn + ffn + i, u);
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) {
      const float up = linear_beta > 0 ? soft_cap(u[k], linear_beta) : u[k];
      u[k] = soft_cap(g[k], beta) * sigmoid(g[k]) * up;
    }
    store<kCount>(out + row * ffn + i, u);
  }
};

template <class T, int kCount>
struct Backward {
  const T *gate_up, *d_out;
  T* d_gate_up;
  std::int64_t ffn;
  float beta, linear_beta;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t i) const {
    float g[kCount], u[kCount], d[kCount];
    load<kCount>(gate_up + row * 2 * ffn + i, g);
    load<kCount>(gate_up + row * 2 * ffn + ffn + i, u);
    load<kCount>(d_out + row * ffn + i, d);
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) {
      const float s = sigmoid(g[k]), c = soft_cap(g[k], beta);
      const float up = linear_beta > 0 ? soft_cap(u[k], linear_beta) : u[k];
      const float slope = linear_beta > 0 ? soft_cap_slope(up, linear_beta) : 1.0F;
      g[k] = d[k] * up * s * (soft_cap_slope(c, beta) + c * (1.0F - s));
      u[k] = d[k] * c * s * slope;
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
    with_vector<T>(rows_of_vectors<T>(ffn, gate_up, out), [&](auto count) {
      for_each_of_rows<count>(context, a.out.rows(), ffn,
                              Forward<T, count>{gate_up, out, ffn, a.beta, a.linear_beta});
    });
  });
}

void backward(Context& context, const SituBackward& a) {
  with_float_type(a.d_out.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T *gate_up = context.data<T>(a.gate_up), *d_out = context.data<T>(a.d_out);
    T* d_gate_up = context.data<T>(a.d_gate_up);
    const std::int64_t ffn = a.d_out.cols();
    with_vector<T>(rows_of_vectors<T>(ffn, gate_up, d_out, d_gate_up), [&](auto count) {
      for_each_of_rows<count>(context, a.d_out.rows(), ffn,
                              Backward<T, count>{gate_up, d_out, d_gate_up, ffn, a.beta, a.linear_beta});
    });
  });
}

}  // namespace

void register_situ(KernelTable& table) {
  table.add<SituForward, Context, &forward>();
  table.add<SituBackward, Context, &backward>();
}

}  // namespace primus::turbo::PRIMUS_GPU
