#include <cmath>

#include "turbo/adamw/adamw.h"
#include "turbo/cpu/reduce.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

template <bool kWorking>
void update(const CpuContext& context, const AdamW& a, std::int64_t begin, std::int64_t end) {
  float* param = context.data<float>(a.param);
  const float* grad = context.data<float>(a.grad);
  float* exp_avg = context.data<float>(a.exp_avg);
  float* exp_avg_sq = context.data<float>(a.exp_avg_sq);
  BFloat16* working = context.data<BFloat16>(a.working);
  const float scale = context.data<float>(a.grad_scale)[0];
  const float decay = 1.0F - a.lr * a.weight_decay;
  const float step = a.lr / a.bias1;
  const float root_bias2 = std::sqrt(a.bias2);
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
  parallel_ranges(context, a.param.elements(), kBytesPerElement, [&](std::int64_t begin, std::int64_t end) {
    if (a.working.absent()) {
      update<false>(context, a, begin, end);
    } else {
      update<true>(context, a, begin, end);
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
  // Not std::min: the scale of a NaN norm is NaN.
  const double scale = a.max_norm == 0.0F ? 1.0 : a.max_norm / (norm + 1e-6);
  *context.data<float>(a.scale) = static_cast<float>(scale > 1.0 ? 1.0 : scale);
}

}  // namespace

void register_adamw(KernelTable& table) {
  table.add<AdamW, CpuContext, &adamw>();
  table.add<SumOfSquares, CpuContext, &sum_of_squares>();
  table.add<ClipCoefficient, CpuContext, &clip_coefficient>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
