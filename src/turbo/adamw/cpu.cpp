#include <algorithm>
#include <cmath>

#include "turbo/adamw/adamw.h"
#include "turbo/adamw/formula.h"
#include "turbo/block_moments.h"
#include "turbo/cpu/master_weights.h"
#include "turbo/cpu/reduce.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/step_scalars.h"
#include "turbo/stochastic_rounding.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

AdamStep step_of(const CpuContext& context, const AdamW& a) {
  return {context.data<float>(a.grad_scale)[0],
          context.data<double>(a.scalars),
          {a.beta1, a.beta2, a.eps, a.learning_rate_factor, a.weight_decay_factor}};
}
RoundingBits random_of(const CpuContext& context, const AdamW& a) {
  const double count = context.data<double>(a.scalars)[index(StepScalar::kStep)];
  return {a.rounding_stream, static_cast<std::uint64_t>(count)};
}

// Stores one element of a moment. `random` holds 16 random bits.
inline void put(float* to, float value, std::uint32_t /*random*/) { *to = value; }
inline void put(BFloat16* to, float value, std::uint32_t random) { *to = round_at_random(value, random); }

template <class Gradient, class First, class Second, class Masters>
void update(const CpuContext& context, const AdamW& a, const Masters masters, std::int64_t begin,
            std::int64_t end) {
  const auto* grad = context.data<Gradient>(a.grad);
  auto* exp_avg = context.data<First>(a.exp_avg);
  auto* exp_avg_sq = context.data<Second>(a.exp_avg_sq);
  const AdamStep step = step_of(context, a);
  const RoundingBits random = random_of(context, a);
  const std::int64_t first = a.first_element;
  constexpr bool kRandom = !std::is_same_v<First, float> || !std::is_same_v<Second, float>;
  PRIMUS_SIMD()
  for (std::int64_t i = begin; i < end; ++i) {
    float m = to_float(exp_avg[i]), v = to_float(exp_avg_sq[i]);
    const float p = step(masters.get(i), to_float(grad[i]), m, v);
    const std::uint32_t bits = kRandom ? random.of(first + i) : 0;
    put(exp_avg + i, m, bits);
    put(exp_avg_sq + i, v, bits >> 16);
    masters.put(i, p);
  }
}

// ---- With an 8-bit moment: block by block ---------------------------------------------------------

// Reads and writes a moment in complete blocks. Its type is checked once per block, not once per element.
template <class Codes>
struct BlockMoment {
  const CpuContext& context;
  const Tensor& moment;
  const Tensor& scale;  // absent: the moment is not 8-bit

  void get(std::int64_t block, float (&to)[kMomentBlock]) const {
    const std::int64_t first = block * kMomentBlock;
    if (scale.absent()) {
      with_float_type(moment.dtype, [&](auto tag) {
        const auto* from = context.data<decltype(tag)>(moment) + first;
        PRIMUS_SIMD()
        for (std::int64_t i = 0; i < kMomentBlock; ++i) to[i] = to_float(from[i]);
      });
      return;
    }
    const auto* codes = context.data<std::uint8_t>(moment) + first;
    const float unit = to_float(context.data<BFloat16>(scale)[block]);
    PRIMUS_SIMD()
    for (std::int64_t i = 0; i < kMomentBlock; ++i) to[i] = Codes::decoded(codes[i], unit);
  }

  // `random` holds 32 random bits per element, of which bits [shift, shift + 16) are used.
  void put(std::int64_t block, const float (&from)[kMomentBlock], const std::uint32_t (&random)[kMomentBlock],
           int shift) const {
    const std::int64_t first = block * kMomentBlock;
    if (scale.absent()) {
      with_float_type(moment.dtype, [&](auto tag) {
        auto* to = context.data<decltype(tag)>(moment) + first;
        PRIMUS_SIMD()
        for (std::int64_t i = 0; i < kMomentBlock; ++i)
          PRIMUS_CPU_ISA::put(to + i, from[i], random[i] >> shift);
      });
      return;
    }
    float largest = 0;
    PRIMUS_SIMD(reduction(max : largest))
    for (std::int64_t i = 0; i < kMomentBlock; ++i) {
      const float magnitude = std::abs(from[i]);
      largest = magnitude > largest ? magnitude : largest;
    }
    const std::uint32_t unit = Codes::unit_field(largest);
    context.data<BFloat16>(scale)[block] = Codes::scale(unit);
    auto* codes = context.data<std::uint8_t>(moment) + first;
    PRIMUS_SIMD()
    for (std::int64_t i = 0; i < kMomentBlock; ++i)
      codes[i] = Codes::encoded(from[i], unit, random[i] >> shift);
  }
};

template <class Gradient, class Masters>
void update_blocks(const CpuContext& context, const AdamW& a, const Masters masters, std::int64_t begin,
                   std::int64_t end) {
  const auto* grad = context.data<Gradient>(a.grad);
  const BlockMoment<FirstMomentCodes> first{context, a.exp_avg, a.exp_avg_scale};
  const BlockMoment<SecondMomentCodes> second{context, a.exp_avg_sq, a.exp_avg_sq_scale};
  const AdamStep step = step_of(context, a);
  const RoundingBits random = random_of(context, a);
  for (std::int64_t block = begin; block < end; ++block) {
    const std::int64_t at = block * kMomentBlock;
    float m[kMomentBlock], v[kMomentBlock];
    std::uint32_t bits[kMomentBlock];
    first.get(block, m);
    second.get(block, v);
    PRIMUS_SIMD()
    for (std::int64_t i = 0; i < kMomentBlock; ++i) {
      masters.put(at + i, step(masters.get(at + i), to_float(grad[at + i]), m[i], v[i]));
      bits[i] = random.of(a.first_element + at + i);
    }
    first.put(block, m, bits, 0);
    second.put(block, v, bits, 16);
  }
}

void adamw_of_blocks(const CpuContext& context, const AdamW& a) {
  constexpr std::int64_t kBytesPerBlock = 24 * kMomentBlock;
  const std::int64_t blocks = a.grad.elements() / kMomentBlock;
  parallel_ranges(context, blocks, kBytesPerBlock, [&](std::int64_t begin, std::int64_t end) {
    with_float_type(a.grad.dtype, [&](auto gradient) {
      with_masters(context, a,
                   [&](auto masters) { update_blocks<decltype(gradient)>(context, a, masters, begin, end); });
    });
  });
}

void adamw(CpuContext& context, const AdamW& a) {
  constexpr std::int64_t kBytesPerElement = 30;
  if (context.data<float>(a.grad_scale)[0] < 0) return;
  if (!a.exp_avg_scale.absent() || !a.exp_avg_sq_scale.absent()) return adamw_of_blocks(context, a);
  parallel_ranges(context, a.grad.elements(), kBytesPerElement, [&](std::int64_t begin, std::int64_t end) {
    with_float_type(a.grad.dtype, [&](auto gradient) {
      with_float_type(a.exp_avg.dtype, [&](auto first) {
        with_float_type(a.exp_avg_sq.dtype, [&](auto second) {
          with_masters(context, a, [&](auto masters) {
            update<decltype(gradient), decltype(first), decltype(second)>(context, a, masters, begin, end);
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
  *context.data<float>(a.scale) = clip_factor(norm, a.max_norm);
}

}  // namespace

void register_adamw(KernelTable& table) {
  table.add<AdamW, CpuContext, &adamw>();
  table.add<SumOfSquares, CpuContext, &sum_of_squares>();
  table.add<ClipCoefficient, CpuContext, &clip_coefficient>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
