#include "turbo/adamw/adamw.h"
#include "turbo/gpu/master_weights.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/step_scalars.h"
#include "turbo/stochastic_rounding.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// Moments as their type stores them. `random`: of each element, 16 bits from `shift` on.
template <int kCount>
PRIMUS_DEVICE void put(float* to, const float (&from)[kCount], const std::uint32_t (&)[kCount], int) {
  store<kCount>(to, from);
}
template <int kCount>
PRIMUS_DEVICE void put(BFloat16* to, const float (&from)[kCount], const std::uint32_t (&random)[kCount],
                       int shift) {
  Pack<BFloat16, kCount> pack;
  PRIMUS_UNROLL
  for (int k = 0; k < kCount; ++k) pack.at[k] = round_at_random(from[k], random[k] >> shift);
  *reinterpret_cast<Pack<BFloat16, kCount>*>(to) = pack;
}

template <int kCount, class Gradient, class First, class Second>
struct Update {
  Masters masters;
  First* exp_avg;
  Second* exp_avg_sq;
  const Gradient* grad;
  const float* grad_scale;
  const double* scalars;
  float beta1, beta2, eps, rate_factor, decay_factor;
  std::uint64_t rounding_stream;
  std::int64_t first_element;

  PRIMUS_DEVICE void operator()(std::int64_t pack) const {
    const std::int64_t i = pack * kCount;
    const float scale = grad_scale[0];
    if (scale < 0) return;
    const float rate = scalar(StepScalar::kLearningRate) * rate_factor;
    const float decay = 1.0F - rate * (scalar(StepScalar::kWeightDecay) * decay_factor);
    const float root_bias2 = ::sqrtf(scalar(StepScalar::kBias2));
    const float root_eps = eps * root_bias2, root_step = rate / scalar(StepScalar::kBias1) * root_bias2;
    float p[kCount], g[kCount], m[kCount], v[kCount];
    masters.get(i, p);
    load<kCount>(grad + i, g);
    load<kCount>(exp_avg + i, m);
    load<kCount>(exp_avg_sq + i, v);
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) {
      g[k] *= scale;
      m[k] = beta1 * m[k] + (1.0F - beta1) * g[k];
      v[k] = beta2 * v[k] + (1.0F - beta2) * (g[k] * g[k]);
      // One division and one root an element: sqrt(v)/root + eps = (sqrt(v) + eps*root) / root.
      p[k] = p[k] * decay - fast_quotient(root_step * m[k], fast_root(v[k]) + root_eps);
    }
    std::uint32_t random[kCount] = {};
    if constexpr (!std::is_same_v<First, float> || !std::is_same_v<Second, float>) {
      const RoundingBits bits(
          rounding_stream, static_cast<std::uint64_t>(scalars[static_cast<std::size_t>(StepScalar::kStep)]));
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) random[k] = bits.of(first_element + i + k);
    }
    put<kCount>(exp_avg + i, m, random, 0);
    put<kCount>(exp_avg_sq + i, v, random, 16);
    masters.put(i, p);
  }
  PRIMUS_DEVICE float scalar(StepScalar which) const {
    return static_cast<float>(scalars[static_cast<std::size_t>(which)]);
  }
};

void adamw(Context& context, const AdamW& a) {
  const Masters masters = masters_of(context, a);
  const std::int64_t n = a.grad.elements();
  with_float_type(a.grad.dtype, [&](auto gradient) {
    with_float_type(a.exp_avg.dtype, [&](auto first) {
      with_float_type(a.exp_avg_sq.dtype, [&](auto second) {
        using Gradient = decltype(gradient);
        using First = decltype(first);
        using Second = decltype(second);
        const auto* grad = context.data<Gradient>(a.grad);
        First* exp_avg = context.data<First>(a.exp_avg);
        Second* exp_avg_sq = context.data<Second>(a.exp_avg_sq);
        const bool vectors = masters_of_vectors(n, masters, grad, exp_avg, exp_avg_sq);
        with_vector<float>(vectors, [&](auto count) {
          for_each(context, n / count,
                   Update<count, Gradient, First, Second>{
                       masters, exp_avg, exp_avg_sq, grad, context.data<float>(a.grad_scale),
                       context.data<double>(a.scalars), a.beta1, a.beta2, a.eps, a.learning_rate_factor,
                       a.weight_decay_factor, a.rounding_stream, a.first_element});
        });
      });
    });
  });
}

template <class T>
struct Square {
  const T* x;
  PRIMUS_DEVICE double operator()(std::int64_t i) const {
    const auto value = static_cast<double>(to_float(x[i]));
    return value * value;
  }
};
struct StoreSquares {
  double* out;
  bool accumulate;
  PRIMUS_DEVICE void operator()(double sum) const { *out = accumulate ? *out + sum : sum; }
};

void sum_of_squares(Context& context, const SumOfSquares& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    ordered_sum<double>(context, a.x.elements(), Square<T>{context.data<T>(a.x)},
                        StoreSquares{context.data<double>(a.out), a.accumulate});
  });
}

struct ClipBody {
  const double* sum_of_squares;
  float *norm, *scale;
  float max_norm;
  PRIMUS_DEVICE void operator()(std::int64_t) const {
    const double root = ::sqrt(*sum_of_squares);
    *norm = static_cast<float>(root);
    const double wanted = max_norm == 0.0F ? 1.0 : static_cast<double>(max_norm) / (root + 1e-6);
    const bool finite = root - root == 0;  // not for NaN, nor for an infinity
    *scale = !finite ? -1.0F : static_cast<float>(wanted > 1.0 ? 1.0 : wanted);
  }
};

void clip_coefficient(Context& context, const ClipCoefficient& a) {
  for_each(context, 1,
           ClipBody{context.data<double>(a.sum_of_squares), context.data<float>(a.norm),
                    context.data<float>(a.scale), a.max_norm});
}

}  // namespace

void register_adamw(KernelTable& table) {
  table.add<AdamW, Context, &adamw>();
  table.add<SumOfSquares, Context, &sum_of_squares>();
  table.add<ClipCoefficient, Context, &clip_coefficient>();
}

}  // namespace primus::turbo::PRIMUS_GPU
