// Loads the inputs of a short causal convolution on GPUs: consecutive channels of a token.
#pragma once

#include <type_traits>

#include "turbo/causal_conv/causal_conv.h"
#include "turbo/gate/formula.h"
#include "turbo/gpu/reduce.h"

namespace primus::turbo::PRIMUS_GPU::causal_conv {

// Loads the weights of consecutive channels for the input at `distance` tokens back.
template <class T, int kCount>
PRIMUS_DEVICE void load_weight(const T* weight, std::int64_t width, std::int64_t channel,
                               std::int64_t distance, float (&w)[kCount]) {
  PRIMUS_UNROLL
  for (int k = 0; k < kCount; ++k) w[k] = to_float(weight[(channel + k) * width + width - 1 - distance]);
}

template <int kCount>
PRIMUS_DEVICE void start_from(const float* values, float (&sum)[kCount]) {
  PRIMUS_UNROLL
  for (int k = 0; k < kCount; ++k) sum[k] = 0.0F;
  if (values) load<kCount>(values, sum);
}

template <int kCount>
PRIMUS_DEVICE void multiply(const float (&by)[kCount], float (&x)[kCount]) {
  PRIMUS_UNROLL
  for (int k = 0; k < kCount; ++k) x[k] *= by[k];
}

template <int kCount>
PRIMUS_DEVICE void add_product(const float (&a)[kCount], const float (&b)[kCount], float (&sum)[kCount]) {
  PRIMUS_UNROLL
  for (int k = 0; k < kCount; ++k) sum[k] = multiply_add(a[k], b[k], sum[k]);
}

// x = silu(x)
template <int kCount>
PRIMUS_DEVICE void activate(float (&x)[kCount]) {
  PRIMUS_UNROLL
  for (int k = 0; k < kCount; ++k) x[k] = silu(x[k]);
}

// x = the derivative of silu(x). Exact exponentials and quotients would take longer than reading the
// gradients.
template <int kCount>
PRIMUS_DEVICE void slope(float (&x)[kCount]) {
  PRIMUS_UNROLL
  for (int k = 0; k < kCount; ++k) x[k] = silu_slope(x[k], fast_quotient(1.0F, 1.0F + fast_exp(-x[k])));
}

// The inputs of the convolution, and the number of inputs that a token sees.
template <class T, bool kSilu>
struct Inputs {
  static constexpr int kParts = kSilu ? 1 : 3;  // parts of a row; each has `channels` columns
  const T *bcx, *weight;
  const float *bias, *before;
  const std::int32_t* first_key;
  const T* d_y;
  std::int64_t rows, tokens, channels, width, first_of_even, first_of_odd;

  template <class Arguments>
  Inputs(Context& context, const Arguments& a)
      : bcx(context.data<T>(a.bcx)),
        weight(nullptr),
        bias(nullptr),
        before(nullptr),
        first_key(nullptr),
        d_y(nullptr),
        rows(a.shape.rows()),
        tokens(a.shape.tokens),
        channels(a.shape.channels),
        width(a.shape.width),
        first_of_even(a.shape.first_of_even),
        first_of_odd(a.shape.first_of_odd) {
    if constexpr (requires { a.weight; }) weight = context.data<T>(a.weight);
    if constexpr (requires { a.bias; }) bias = optional<float>(context, a.bias);
    if constexpr (requires { a.before; }) before = optional<float>(context, a.before);
    if constexpr (requires { a.first_key; }) first_key = optional<std::int32_t>(context, a.first_key);
    if constexpr (requires { a.d_y; }) d_y = context.data<T>(a.d_y);
  }

  // Returns the number of preceding tokens that this token sees.
  PRIMUS_DEVICE std::int64_t reach(std::int64_t segment, std::int64_t token) const {
    const std::int64_t position = (segment % 2 == 0 ? first_of_even : first_of_odd) + token;
    const std::int64_t first = first_key ? first_key[segment * tokens + token] : 0;
    return larger(smaller(position - first, width - 1), 0);
  }
  PRIMUS_DEVICE const T* row(std::int64_t segment, std::int64_t token) const {
    return bcx + (segment * tokens + token) * kParts * channels;
  }
  // Loads u of a token. A negative `token` is before the segment.
  template <int kCount>
  PRIMUS_DEVICE void load_input(std::int64_t segment, std::int64_t token, std::int64_t channel,
                                float (&u)[kCount]) const {
    if (token < 0) {
      load<kCount>(before + (segment * (width - 1) + width - 1 + token) * channels + channel, u);
      return;
    }
    const T* b = row(segment, token) + channel;
    load<kCount>(b, u);
    if constexpr (!kSilu) {
      float x[kCount];
      load<kCount>(b + 2 * channels, x);
      multiply(x, u);
    }
  }
  // Loads u of the token `distance` tokens before this token; zeros if no token can see that input.
  template <int kCount>
  PRIMUS_DEVICE void load_earlier(std::int64_t segment, std::int64_t token, int distance,
                                  std::int64_t channel, float (&u)[kCount]) const {
    if (distance < width && (token >= distance || before)) {
      load_input(segment, token - distance, channel, u);
    } else {
      start_from(nullptr, u);
    }
  }
  // Computes the gradient of a token's sums: d_y * C, or d_y * silu'(sums).
  template <int kCount>
  PRIMUS_DEVICE void load_gradient(std::int64_t segment, std::int64_t token, std::int64_t channel,
                                   float (&d)[kCount]) const {
    float c[kCount];
    load<kCount>(d_y + (segment * tokens + token) * channels + channel, d);
    if constexpr (kSilu) {
      convolve(segment, token, channel, c);
      slope(c);
    } else {
      load<kCount>(row(segment, token) + channels + channel, c);
    }
    multiply(c, d);
  }
  // Loads the weights of the taps, by their distance from the token.
  template <int kTaps, int kCount>
  PRIMUS_DEVICE void load_weights(std::int64_t channel, float (&w)[kTaps][kCount]) const {
    if constexpr (kCount > 1) {  // kTaps == width: a channel's weights are consecutive, and so are channels
      PRIMUS_UNROLL
      for (int part = 0; part < kTaps; ++part) {
        float some[kCount];
        load<kCount>(weight + channel * kTaps + part * kCount, some);
        PRIMUS_UNROLL
        for (int i = 0; i < kCount; ++i) {
          const int at = part * kCount + i;
          w[kTaps - 1 - at % kTaps][at / kTaps] = some[i];
        }
      }
    } else {
      PRIMUS_UNROLL
      for (int d = 0; d < kTaps; ++d)
        w[d][0] = d < width ? to_float(weight[channel * width + width - 1 - d]) : 0.0F;
    }
  }
  // Computes the sums of a token by loading all its inputs.
  template <int kCount>
  PRIMUS_DEVICE void convolve(std::int64_t segment, std::int64_t token, std::int64_t channel,
                              float (&sum)[kCount]) const {
    start_from(bias ? bias + channel : nullptr, sum);
    PRIMUS_UNROLL_BY(3)
    for (std::int64_t d = reach(segment, token); d >= 0; --d) {
      float u[kCount], w[kCount];
      load_input(segment, token - d, channel, u);
      load_weight(weight, width, channel, d, w);
      add_product(w, u, sum);
    }
  }
  // Adds to `sum` the gradient of u at `token`, as far as it comes from token `token` + `from` and later
  // tokens. The loop ends at the first token that does not see `token`, because later tokens do not see
  // `token` either.
  template <int kCount>
  PRIMUS_DEVICE void add_gradient(std::int64_t segment, std::int64_t token, std::int64_t from,
                                  std::int64_t channel, float (&sum)[kCount]) const {
    PRIMUS_UNROLL_BY(3)
    for (std::int64_t d = from; d < width && token + d < tokens; ++d) {
      if (reach(segment, token + d) < d) return;
      float e[kCount], w[kCount];
      load_gradient(segment, token + d, channel, e);
      load_weight(weight, width, channel, d, w);
      add_product(w, e, sum);
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU::causal_conv
