#include "turbo/adamw/adamw.h"
#include "turbo/adamw/formula.h"
#include "turbo/block_moments.h"
#include "turbo/gpu/loops.h"
#include "turbo/gpu/master_weights.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/step_scalars.h"
#include "turbo/stochastic_rounding.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// Number of lanes that share a block of an 8-bit moment, and number of consecutive elements per lane.
constexpr int kLanesOfBlock = 32, kOfLane = static_cast<int>(kMomentBlock) / kLanesOfBlock;

// Reads and writes a moment in fp32 or bf16. `here` is false in a thread without elements, which only
// participates in shuffles.
template <class T>
struct FloatMoment {
  T* at;

  template <int kCount>
  PRIMUS_DEVICE void get(std::int64_t i, float (&to)[kCount]) const {
    load<kCount>(at + i, to);
  }
  // `random` holds 32 random bits per element, of which bits [shift, shift + 16) are used.
  template <int kCount>
  PRIMUS_DEVICE void put(std::int64_t i, const float (&from)[kCount], const std::uint32_t (&random)[kCount],
                         int shift, bool here) const {
    if (!here) return;
    if constexpr (std::is_same_v<T, float>) {
      store<kCount>(at + i, from);
    } else {
      Pack<T, kCount> pack;
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) pack.at[k] = round_at_random(from[k], random[k] >> shift);
      *reinterpret_cast<Pack<T, kCount>*>(at + i) = pack;
    }
  }
};

// Reads and writes an 8-bit moment. 32 lanes with consecutive numbers share a block.
template <class Codes>
struct CodedMoment {
  std::uint8_t* at;
  BFloat16* scales;

  PRIMUS_DEVICE void get(std::int64_t i, float (&to)[kOfLane]) const {
    const float scale = to_float(scales[i / kMomentBlock]);
    const auto codes = *reinterpret_cast<const Pack<std::uint8_t, kOfLane>*>(at + i);
    PRIMUS_UNROLL
    for (int k = 0; k < kOfLane; ++k) to[k] = Codes::decoded(codes.at[k], scale);
  }
  PRIMUS_DEVICE void put(std::int64_t i, const float (&from)[kOfLane], const std::uint32_t (&random)[kOfLane],
                         int shift, bool here) const {
    float largest = 0;
    PRIMUS_UNROLL
    for (int k = 0; k < kOfLane; ++k) largest = ::fmaxf(largest, ::fabsf(from[k]));
    PRIMUS_UNROLL
    for (int mask = kLanesOfBlock / 2; mask > 0; mask /= 2)
      largest = ::fmaxf(largest, from_lane_xor(largest, mask));
    if (!here) return;
    const std::uint32_t unit = Codes::unit_field(largest);
    Pack<std::uint8_t, kOfLane> codes;
    PRIMUS_UNROLL
    for (int k = 0; k < kOfLane; ++k) codes.at[k] = Codes::encoded(from[k], unit, random[k] >> shift);
    *reinterpret_cast<Pack<std::uint8_t, kOfLane>*>(at + i) = codes;
    if (i % kMomentBlock == 0) scales[i / kMomentBlock] = Codes::scale(unit);
  }
};

template <int kCount, class Gradient, class First, class Second>
struct Update {
  Masters masters;
  First exp_avg;
  Second exp_avg_sq;
  const Gradient* grad;
  const float* grad_scale;
  const double* scalars;
  AdamFactors factors;
  std::uint64_t rounding_stream;
  std::int64_t first_element;

  PRIMUS_DEVICE void operator()(std::int64_t pack) const { update(pack * kCount, true); }

  PRIMUS_DEVICE void update(std::int64_t i, bool here) const {
    if (grad_scale[0] < 0) return;
    const AdamStep step(grad_scale[0], scalars, factors);
    float p[kCount] = {}, g[kCount] = {}, m[kCount] = {}, v[kCount] = {};
    if (here) {
      masters.get(i, p);
      load<kCount>(grad + i, g);
      exp_avg.get(i, m);
      exp_avg_sq.get(i, v);
    }
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) p[k] = step(p[k], g[k], m[k], v[k]);
    std::uint32_t random[kCount] = {};
    if constexpr (!std::is_same_v<First, FloatMoment<float>> || !std::is_same_v<Second, FloatMoment<float>>) {
      const RoundingBits bits(rounding_stream, static_cast<std::uint64_t>(scalars[index(StepScalar::kStep)]));
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) random[k] = bits.of(first_element + i + k);
    }
    exp_avg.put(i, m, random, 0, here);
    exp_avg_sq.put(i, v, random, 16, here);
    if (here) masters.put(i, p);
  }
};

// Calls update() in all lanes, even without an element, because a block's lanes find its maximum together.
template <class Body>
struct OfBlocks {
  static constexpr int kThreads = 256;
  Body body;
  std::int64_t n;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t i = (block() * kThreads + thread()) * kOfLane;
    body.update(i, i < n);
  }
};

template <class Body>
void with_float_moment(const Context& context, const Tensor& moment, Body&& body) {
  with_float_type(moment.dtype,
                  [&](auto tag) { body(FloatMoment<decltype(tag)>{context.data<decltype(tag)>(moment)}); });
}
template <class Codes>
CodedMoment<Codes> coded_moment(const Context& context, const Tensor& moment, const Tensor& scale) {
  return {context.data<std::uint8_t>(moment), context.data<BFloat16>(scale)};
}

template <int kCount, class Gradient, class First, class Second>
Update<kCount, Gradient, First, Second> update_of(const Context& context, const AdamW& a,
                                                  const Gradient* grad, const First& first,
                                                  const Second& second) {
  return {masters_of(context, a),
          first,
          second,
          grad,
          context.data<float>(a.grad_scale),
          context.data<double>(a.scalars),
          {a.beta1, a.beta2, a.eps, a.learning_rate_factor, a.weight_decay_factor},
          a.rounding_stream,
          a.first_element};
}

template <class First, class Second>
void adamw_of_blocks(Context& context, const AdamW& a, const First& first, const Second& second) {
  const std::int64_t n = a.grad.elements();
  with_float_type(a.grad.dtype, [&](auto gradient) {
    const auto body = update_of<kOfLane>(context, a, context.data<decltype(gradient)>(a.grad), first, second);
    using Body = OfBlocks<std::remove_const_t<decltype(body)>>;
    launch(context, blocks_for(n / kOfLane, Body::kThreads), Body{body, n});
  });
}

void adamw(Context& context, const AdamW& a) {
  const bool first_coded = !a.exp_avg_scale.absent(), second_coded = !a.exp_avg_sq_scale.absent();
  const auto first_codes = [&] {
    return coded_moment<FirstMomentCodes>(context, a.exp_avg, a.exp_avg_scale);
  };
  const auto second_codes = [&] {
    return coded_moment<SecondMomentCodes>(context, a.exp_avg_sq, a.exp_avg_sq_scale);
  };
  if (first_coded && second_coded) return adamw_of_blocks(context, a, first_codes(), second_codes());
  if (first_coded) {
    return with_float_moment(context, a.exp_avg_sq,
                             [&](auto second) { adamw_of_blocks(context, a, first_codes(), second); });
  }
  if (second_coded) {
    return with_float_moment(context, a.exp_avg,
                             [&](auto first) { adamw_of_blocks(context, a, first, second_codes()); });
  }
  const Masters masters = masters_of(context, a);
  const std::int64_t n = a.grad.elements();
  with_float_type(a.grad.dtype, [&](auto gradient) {
    const auto* grad = context.data<decltype(gradient)>(a.grad);
    with_float_moment(context, a.exp_avg, [&](auto first) {
      with_float_moment(context, a.exp_avg_sq, [&](auto second) {
        const bool vectors = masters_of_vectors(n, masters, grad, first.at, second.at);
        with_vector<float>(vectors, [&](auto count) {
          for_each(context, n / count, update_of<count>(context, a, grad, first, second));
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
    *scale = clip_factor(root, max_norm);
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
