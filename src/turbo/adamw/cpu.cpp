#include <algorithm>
#include <cmath>

#include "turbo/adamw/adamw.h"
#include "turbo/cpu/reduce.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// The step's numbers as the kernel needs them.
struct Rates {
  float scale, decay, step, root_bias2;
};

Rates rates_of(const CpuContext& context, const AdamW& a) {
  const double* scalars = context.data<double>(a.scalars);
  const auto scalar = [&](StepScalar which) { return static_cast<float>(scalars[index(which)]); };
  const float rate = scalar(StepScalar::kLearningRate) * a.learning_rate_factor;
  return {.scale = context.data<float>(a.grad_scale)[0],
          .decay = 1.0F - rate * (scalar(StepScalar::kWeightDecay) * a.weight_decay_factor),
          .step = rate / scalar(StepScalar::kBias1),
          .root_bias2 = std::sqrt(scalar(StepScalar::kBias2))};
}

template <bool kWorking>
void update(const CpuContext& context, const AdamW& a, const Rates& rates, std::int64_t begin,
            std::int64_t end) {
  float* param = context.data<float>(a.param);
  const float* grad = context.data<float>(a.grad);
  float* exp_avg = context.data<float>(a.exp_avg);
  float* exp_avg_sq = context.data<float>(a.exp_avg_sq);
  BFloat16* working = context.data<BFloat16>(a.working);
  const auto [scale, decay, step, root_bias2] = rates;
  const float beta1 = a.beta1, beta2 = a.beta2, eps = a.eps;
  const float rest1 = 1.0F - beta1, rest2 = 1.0F - beta2;
  // One division and one root an element: sqrt(v)/root + eps = (sqrt(v) + eps*root) / root.
  const float root_eps = eps * root_bias2, root_step = step * root_bias2;
  PRIMUS_SIMD()
  for (std::int64_t i = begin; i < end; ++i) {
    const float g = grad[i] * scale;
    const float m = beta1 * exp_avg[i] + rest1 * g;
    const float v = beta2 * exp_avg_sq[i] + rest2 * (g * g);
    const float p = param[i] * decay - root_step * m / (std::sqrt(v) + root_eps);
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    param[i] = p;
    if constexpr (kWorking) working[i] = from_float<BFloat16>(p);
  }
}

void adamw(CpuContext& context, const AdamW& a) {
  constexpr std::int64_t kBytesPerElement = 30;
  const Rates rates = rates_of(context, a);
  if (rates.scale < 0) return;
  parallel_ranges(context, a.param.elements(), kBytesPerElement, [&](std::int64_t begin, std::int64_t end) {
    if (a.working.absent()) {
      update<false>(context, a, rates, begin, end);
    } else {
      update<true>(context, a, rates, begin, end);
    }
  });
}

void sum_of_squares(CpuContext& context, const SumOfSquares& a) {
  const float* x = context.data<float>(a.x);
  const double sum = ordered_sum<double>(context, a.x.elements(), [&](std::int64_t begin, std::int64_t end) {
    return sum_doubles(begin, end, [&](std::int64_t i) {
      const double value = x[i];
      return value * value;
    });
  });
  double* out = context.data<double>(a.out);
  *out = a.accumulate ? *out + sum : sum;
}

void clip_coefficient(CpuContext& context, const ClipCoefficient& a) {
  const double norm = std::sqrt(*context.data<double>(a.sum_of_squares));
  *context.data<float>(a.norm) = static_cast<float>(norm);
  const double scale = a.max_norm == 0.0F ? 1.0 : std::min(1.0, a.max_norm / (norm + 1e-6));
  *context.data<float>(a.scale) = std::isfinite(norm) ? static_cast<float>(scale) : -1.0F;
}

}  // namespace

void register_adamw(KernelTable& table) {
  table.add<AdamW, CpuContext, &adamw>();
  table.add<SumOfSquares, CpuContext, &sum_of_squares>();
  table.add<ClipCoefficient, CpuContext, &clip_coefficient>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
