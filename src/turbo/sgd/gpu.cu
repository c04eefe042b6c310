#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/sgd/sgd.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

template <int kCount>
struct SgdBody {
  float *param, *buffer;  // buffer: or null
  const float *grad, *grad_scale;
  BFloat16* working;  // or null
  const double* scalars;
  float momentum, decay_factor;

  PRIMUS_DEVICE void operator()(std::int64_t pack) const {
    const std::int64_t i = pack * kCount;
    const float scale = grad_scale[0];
    if (scale < 0) return;
    const auto rate = static_cast<float>(scalars[static_cast<std::size_t>(StepScalar::kLearningRate)]);
    const float decay =
        static_cast<float>(scalars[static_cast<std::size_t>(StepScalar::kWeightDecay)]) * decay_factor;
    float p[kCount], step[kCount];
    load<kCount>(param + i, p);
    load<kCount>(grad + i, step);
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) step[k] = step[k] * scale + decay * p[k];
    if (buffer) {
      float m[kCount];
      load<kCount>(buffer + i, m);
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) step[k] = momentum * m[k] + step[k];
      store<kCount>(buffer + i, step);
    }
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) p[k] = p[k] - rate * step[k];
    store<kCount>(param + i, p);
    if (working) store<kCount>(working + i, p);
  }
};

void sgd_momentum(Context& context, const SgdMomentum& a) {
  float *param = context.data<float>(a.param), *buffer = optional<float>(context, a.momentum_buffer);
  const float* grad = context.data<float>(a.grad);
  auto* working = optional<BFloat16>(context, a.working);
  const std::int64_t n = a.param.elements();
  with_vector<float>(rows_of_vectors<float>(n, param, grad, buffer, working), [&](auto count) {
    for_each(context, n / count,
             SgdBody<count>{param, buffer, grad, context.data<float>(a.grad_scale), working,
                            context.data<double>(a.scalars), a.momentum, a.weight_decay_factor});
  });
}

}  // namespace

void register_sgd(KernelTable& table) { table.add<SgdMomentum, Context, &sgd_momentum>(); }

}  // namespace primus::turbo::PRIMUS_GPU
