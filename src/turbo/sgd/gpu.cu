#include "turbo/gpu/loops.h"
#include "turbo/gpu/master_weights.h"
#include "turbo/gpu/register.h"
#include "turbo/sgd/formula.h"
#include "turbo/sgd/sgd.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

template <class Gradient, int kCount>
struct SgdBody {
  Masters masters;
  float* buffer;  // may be null
  const Gradient* grad;
  const float* grad_scale;
  const double* scalars;
  float momentum, decay_factor;

  PRIMUS_DEVICE void operator()(std::int64_t pack) const {
    const std::int64_t i = pack * kCount;
    if (grad_scale[0] < 0) return;
    const SgdStep step(grad_scale[0], scalars, decay_factor);
    float p[kCount], direction[kCount];
    masters.get(i, p);
    load<kCount>(grad + i, direction);
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) direction[k] = step.direction(p[k], direction[k]);
    if (buffer) {
      float m[kCount];
      load<kCount>(buffer + i, m);
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) direction[k] = step.with_momentum(momentum, m[k], direction[k]);
      store<kCount>(buffer + i, direction);
    }
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) p[k] = step.moved(p[k], direction[k]);
    masters.put(i, p);
  }
};

void sgd_momentum(Context& context, const SgdMomentum& a) {
  const Masters masters = masters_of(context, a);
  auto* buffer = optional<float>(context, a.momentum_buffer);
  const std::int64_t n = a.grad.elements();
  with_float_type(a.grad.dtype, [&](auto tag) {
    using Gradient = decltype(tag);
    const auto* grad = context.data<Gradient>(a.grad);
    with_vector<float>(masters_of_vectors(n, masters, grad, buffer), [&](auto count) {
      for_each(context, n / count,
               SgdBody<Gradient, count>{masters, buffer, grad, context.data<float>(a.grad_scale),
                                        context.data<double>(a.scalars), a.momentum, a.weight_decay_factor});
    });
  });
}

}  // namespace

void register_sgd(KernelTable& table) { table.add<SgdMomentum, Context, &sgd_momentum>(); }

}  // namespace primus::turbo::PRIMUS_GPU
