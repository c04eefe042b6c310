#include <algorithm>
#include <cmath>

#include "turbo/adamw/adamw.h"
#include "turbo/cpu/master_weights.h"
#include "turbo/cpu/reduce.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/step_scalars.h"
#include "turbo/stochastic_rounding.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// The step's numbers as the kernel needs them.
struct Rates {
  float scale, decay, step, root_bias2;
  std::uint64_t count;  // of steps
};

Rates rates_of(const CpuContext& context, const AdamW& a) {
  const double* scalars = context.data<double>(a.scalars);
  const auto scalar = [&](StepScalar which) { return static_cast<float>(scalars[index(which)]); };
  const float rate = scalar(StepScalar::kLearningRate) * a.learning_rate_factor;
  return {.scale = context.data<float>(a.grad_scale)[0],
          .decay = 1.0F - rate * (scalar(StepScalar::kWeightDecay) * a.weight_decay_factor),
          .step = rate / scalar(StepScalar::kBias1),
          .root_bias2 = std::sqrt(scalar(StepScalar::kBias2)),
          .count = static_cast<std::uint64_t>(scalars[index(StepScalar::kStep)])};
}

// The element of a moment; `random`: 16 bits of it.
inline void put(float* to, float value, std::uint32_t /*random*/) { *to = value; }
inline void put(BFloat16* to, float value, std::uint32_t random) { *to = round_at_random(value, random); }

template <class Gradient, class First, class Second, class Masters>
void update(const CpuContext& context, const AdamW& a, const Rates& rates, const Masters masters,
            std::int64_t begin, std::int64_t end) {
  const auto* grad = context.data<Gradient>(a.grad);
  auto* exp_avg = context.data<First>(a.exp_avg);
  auto* exp_avg_sq = context.data<Second>(a.exp_avg_sq);
  const auto [scale, decay, step, root_bias2, count] = rates;
  const float beta1 = a.beta1, beta2 = a.beta2, eps = a.eps;
  const float rest1 = 1.0F - beta1, rest2 = 1.0F - beta2;
  // One division and one root an element: sqrt(v)/root + eps = (sqrt(v) + eps*root) / root.
  const float root_eps = eps * root_bias2, root_step = step * root_bias2;
  const RoundingBits random(a.rounding_stream, count);
  const std::int64_t first = a.first_element;
  constexpr bool kRandom = !std::is_same_v<First, float> || !std::is_same_v<Second, float>;
  PRIMUS_SIMD()
  for (std::int64_t i = begin; i < end; ++i) {
    const float g = to_float(grad[i]) * scale;
    const float m = beta1 * to_float(exp_avg[i]) + rest1 * g;
    const float v = beta2 * to_float(exp_avg_sq[i]) + rest2 * (g * g);
    const float p = masters.get(i) * decay - root_step * m / (std::sqrt(v) + root_eps);
    const std::uint32_t bits = kRandom ? random.of(first + i) : 0;
    put(exp_avg + i, m, bits);
    put(exp_avg_sq + i, v, bits >> 16);
    masters.put(i, p);
  }
}

void adamw(CpuContext& context, const AdamW& a) {
  constexpr std::int64_t kBytesPerElement = 30;
  const Rates rates = rates_of(context, a);
  if (rates.scale < 0) return;
  parallel_ranges(context, a.grad.elements(), kBytesPerElement, [&](std::int64_t begin, std::int64_t end) {
    with_float_type(a.grad.dtype, [&](auto gradient) {
      with_float_type(a.exp_avg.dtype, [&](auto first) {
        with_float_type(a.exp_avg_sq.dtype, [&](auto second) {
          with_masters(context, a, [&](auto masters) {
            update<decltype(gradient), decltype(first), decltype(second)>(context, a, rates, masters, begin,
                                                                          end);
          });
        });
      });
    });
  });
}

void sum_of_squares(CpuContext& context, const SumOfSquares& a) {
  double* out = context.data<double>(a.out);
  with_float_type(a.x.dtype, [&](auto tag) {
    const auto* x = context.data<decltype(tag)>(a.x);
    const double sum =
        ordered_sum<double>(context, a.x.elements(), [&](std::int64_t begin, std::int64_t end) {
          return sum_doubles(begin, end, [&](std::int64_t i) {
            const double value = to_float(x[i]);
            return value * value;
          });
        });
    *out = a.accumulate ? *out + sum : sum;
  });
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
