#include "turbo/cpu/master_weights.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/lion/formula.h"
#include "turbo/lion/lion.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

template <class Gradient, class Masters>
void update(const CpuContext& context, const Lion& a, const Masters masters, std::int64_t begin,
            std::int64_t end) {
  const SignStep step(context.data<float>(a.grad_scale)[0], context.data<double>(a.scalars), a.beta1, a.beta2,
                      a.weight_decay_factor);
  const auto* grad = context.data<Gradient>(a.grad);
  float* exp_avg = context.data<float>(a.exp_avg);
  PRIMUS_SIMD()
  for (std::int64_t i = begin; i < end; ++i) {
    float m = exp_avg[i];
    const float p = step(masters.get(i), to_float(grad[i]), m);
    exp_avg[i] = m;
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
