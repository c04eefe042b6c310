#include "turbo/cpu/master_weights.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/lion/lion.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

template <class Gradient, class Masters>
void update(const CpuContext& context, const Lion& a, const Masters masters, std::int64_t begin,
            std::int64_t end) {
  const double* scalars = context.data<double>(a.scalars);
  const auto rate = static_cast<float>(scalars[index(StepScalar::kLearningRate)]);
  const auto weight_decay = static_cast<float>(scalars[index(StepScalar::kWeightDecay)]);
  const float keep = 1.0F - rate * (weight_decay * a.weight_decay_factor);
  const float scale = context.data<float>(a.grad_scale)[0];
  const float beta1 = a.beta1, beta2 = a.beta2, rest1 = 1.0F - beta1, rest2 = 1.0F - beta2;
  const auto* grad = context.data<Gradient>(a.grad);
  float* exp_avg = context.data<float>(a.exp_avg);
  PRIMUS_SIMD()
  for (std::int64_t i = begin; i < end; ++i) {
    const float g = to_float(grad[i]) * scale, m = exp_avg[i];
    const float mixed = beta1 * m + rest1 * g;
    const float sign = static_cast<float>(mixed > 0) - static_cast<float>(mixed < 0);
    const float p = masters.get(i) * keep - rate * sign;
    exp_avg[i] = beta2 * m + rest2 * g;
    masters.put(i, p);
  }
}

void lion(CpuContext& context, const Lion& a) {
  constexpr std::int64_t kBytesPerElement = 22;
  if (context.data<float>(a.grad_scale)[0] < 0) return;
  parallel_ranges(context, a.grad.elements(), kBytesPerElement, [&](std::int64_t begin, std::int64_t end) {
    with_float_type(a.grad.dtype, [&](auto tag) {
      with_masters(context, a, [&](auto masters) { update<decltype(tag)>(context, a, masters, begin, end); });
    });
  });
}

}  // namespace

void register_lion(KernelTable& table) { table.add<Lion, CpuContext, &lion>(); }

}  // namespace primus::turbo::PRIMUS_CPU_ISA
