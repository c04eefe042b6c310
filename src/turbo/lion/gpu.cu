#include "turbo/gpu/loops.h"
#include "turbo/gpu/master_weights.h"
#include "turbo/gpu/register.h"
#include "turbo/lion/formula.h"
#include "turbo/lion/lion.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

template <class Gradient, int kCount>
struct LionBody {
  Masters masters;
  float* exp_avg;
  const Gradient* grad;
  const float* grad_scale;
  const double* scalars;
  float beta1, beta2, decay_factor;

  PRIMUS_DEVICE void operator()(std::int64_t pack) const {
    const std::int64_t i = pack * kCount;
    if (grad_scale[0] < 0) return;
    const SignStep step(grad_scale[0], scalars, beta1, beta2, decay_factor);
    float p[kCount], g[kCount], m[kCount];
    masters.get(i, p);
    load<kCount>(grad + i, g);
    load<kCount>(exp_avg + i, m);
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) p[k] = step(p[k], g[k], m[k]);
    store<kCount>(exp_avg + i, m);
    masters.put(i, p);
  }
};

void lion(Context& context, const Lion& a) {
  const Masters masters = masters_of(context, a);
  float* exp_avg = context.data<float>(a.exp_avg);
  const std::int64_t n = a.grad.elements();
  with_float_type(a.grad.dtype, [&](auto tag) {
    using Gradient = decltype(tag);
    const auto* grad = context.data<Gradient>(a.grad);
    with_vector<float>(masters_of_vectors(n, masters, grad, exp_avg), [&](auto count) {
      for_each(context, n / count,
               LionBody<Gradient, count>{masters, exp_avg, grad, context.data<float>(a.grad_scale),
                                         context.data<double>(a.scalars), a.beta1, a.beta2,
                                         a.weight_decay_factor});
    });
  });
}

}  // namespace

void register_lion(KernelTable& table) { table.add<Lion, Context, &lion>(); }

}  // namespace primus::turbo::PRIMUS_GPU
