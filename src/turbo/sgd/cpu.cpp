#include "turbo/cpu/master_weights.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/sgd/formula.h"
#include "turbo/sgd/sgd.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// kMomentum is a template parameter, so that the loop has no branch.
template <bool kMomentum, class Gradient, class Masters>
void update(const CpuContext& context, const SgdMomentum& a, const Masters masters, std::int64_t begin,
            std::int64_t end) {
  const SgdStep step(context.data<float>(a.grad_scale)[0], context.data<double>(a.scalars),
                     a.weight_decay_factor);
  const float momentum = a.momentum;
  const auto* grad = context.data<Gradient>(a.grad);
  float* buffer = kMomentum ? context.data<float>(a.momentum_buffer) : nullptr;
  PRIMUS_SIMD()
  for (std::int64_t i = begin; i < end; ++i) {
    const float param = masters.get(i);
    float direction = step.direction(param, to_float(grad[i]));
    if constexpr (kMomentum) {
      direction = step.with_momentum(momentum, buffer[i], direction);
      buffer[i] = direction;
    }
    masters.put(i, step.moved(param, direction));
  }
}

void sgd_momentum(CpuContext& context, const SgdMomentum& a) {
  constexpr std::int64_t kBytesPerElement = 22;
  if (context.data<float>(a.grad_scale)[0] < 0) return;
  const bool momentum = !a.momentum_buffer.absent();
  parallel_ranges(context, a.grad.elements(), kBytesPerElement, [&](std::int64_t begin, std::int64_t end) {
    with_float_type(a.grad.dtype, [&](auto tag) {
      using Gradient = decltype(tag);
      with_masters(context, a, [&](auto masters) {
        momentum ? update<true, Gradient>(context, a, masters, begin, end)
                 : update<false, Gradient>(context, a, masters, begin, end);
      });
    });
  });
}

}  // namespace

void register_sgd(KernelTable& table) { table.add<SgdMomentum, CpuContext, &sgd_momentum>(); }

}  // namespace primus::turbo::PRIMUS_CPU_ISA
