#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/sgd/sgd.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// What of the optional operands there is, known at compile time so that the loop has no branch.
template <bool kMomentum, bool kWorking>
void update(const CpuContext& context, const SgdMomentum& a, std::int64_t begin, std::int64_t end) {
  const double* scalars = context.data<double>(a.scalars);
  const auto rate = static_cast<float>(scalars[index(StepScalar::kLearningRate)]);
  const float decay = static_cast<float>(scalars[index(StepScalar::kWeightDecay)]) * a.weight_decay_factor;
  const float scale = context.data<float>(a.grad_scale)[0], momentum = a.momentum;
  float* param = context.data<float>(a.param);
  const float* grad = context.data<float>(a.grad);
  float* buffer = kMomentum ? context.data<float>(a.momentum_buffer) : nullptr;
  BFloat16* working = kWorking ? context.data<BFloat16>(a.working) : nullptr;
  PRIMUS_SIMD()
  for (std::int64_t i = begin; i < end; ++i) {
    float step = grad[i] * scale + decay * param[i];
    if constexpr (kMomentum) {
      step = momentum * buffer[i] + step;
      buffer[i] = step;
    }
    const float p = param[i] - rate * step;
    param[i] = p;
    if constexpr (kWorking) working[i] = from_float<BFloat16>(p);
  }
}

void sgd_momentum(CpuContext& context, const SgdMomentum& a) {
  constexpr std::int64_t kBytesPerElement = 22;
  if (context.data<float>(a.grad_scale)[0] < 0) return;
  const bool momentum = !a.momentum_buffer.absent(), working = !a.working.absent();
  parallel_ranges(context, a.param.elements(), kBytesPerElement, [&](std::int64_t begin, std::int64_t end) {
    if (momentum) {
      working ? update<true, true>(context, a, begin, end) : update<true, false>(context, a, begin, end);
    } else {
      working ? update<false, true>(context, a, begin, end) : update<false, false>(context, a, begin, end);
    }
  });
}

}  // namespace

void register_sgd(KernelTable& table) { table.add<SgdMomentum, CpuContext, &sgd_momentum>(); }

}  // namespace primus::turbo::PRIMUS_CPU_ISA
