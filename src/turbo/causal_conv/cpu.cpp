// The channels of a row are processed in blocks that stay in registers and L1.
#include <algorithm>
#include <type_traits>

#include "turbo/causal_conv/causal_conv.h"
#include "turbo/cpu/reduce.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/gate/formula.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

constexpr std::int64_t kChannels = 256;  // channels per block

template <class T>
const T* optional(const CpuContext& context, const Tensor& tensor) {
  return tensor.absent() ? nullptr : context.data<const T>(tensor);
}

// The weights of a block of channels. of(d)[i] is the factor of channel i's input d tokens back.
struct Lines {
  template <class T>
  Lines(const T* weight, std::int64_t channel, std::int64_t count, std::int64_t width) {
    const T* from = weight + channel * width;
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t d = 0; d < width; ++d) at[d][i] = to_float(from[i * width + width - 1 - d]);
    }
  }
  const float* of(std::int64_t distance) const { return at[distance]; }
  float at[CausalConvShape::kMaxWidth][kChannels];
};

// The weights of all channels, block by block, in a buffer of [width, channels] elements.
struct AllLines {
  template <class T>
  static void fill(const T* weight, std::int64_t channels, std::int64_t width, float* to) {
    for (std::int64_t i = 0; i < channels; ++i) {
      for (std::int64_t d = 0; d < width; ++d)
        to[d * channels + i] = to_float(weight[i * width + width - 1 - d]);
    }
  }
  const float* of(std::int64_t distance) const { return block + distance * channels; }
  const float* block;
  std::int64_t channels;
};

// Calls body(tag of the type, whether the form is kSilu), both as compile-time constants.
template <class Body>
void with_type_and_form(DType dtype, CausalConvShape::Form form, Body body) {
  with_float_type(dtype, [&](auto tag) {
    if (form == CausalConvShape::Form::kSilu) return body(tag, std::true_type());
    body(tag, std::false_type());
  });
}

// The inputs of the convolution, and the number of inputs that a token sees.
template <class T, bool kSilu>
struct Inputs {
  static constexpr std::int64_t kParts = kSilu ? 1 : 3;  // parts of a row; each has `channels` columns
  Inputs(const CpuContext& context, const CausalConvShape& shape, const Tensor& rows,
         const Tensor& before_rows, const Tensor& first_keys)
      : s(shape),
        bcx(context.data<const T>(rows)),
        before(optional<float>(context, before_rows)),
        first_key(optional<std::int32_t>(context, first_keys)) {}

  // Returns the number of preceding tokens that this token sees.
  std::int64_t reach(std::int64_t segment, std::int64_t token) const {
    const std::int64_t position = (segment % 2 == 0 ? s.first_of_even : s.first_of_odd) + token;
    const std::int64_t first = first_key ? first_key[segment * s.tokens + token] : 0;
    return std::clamp<std::int64_t>(position - first, 0, s.width - 1);
  }
  const T* row(std::int64_t segment, std::int64_t token) const {
    return bcx + (segment * s.tokens + token) * kParts * s.channels;
  }
  // Calls use(i, u) for `count` channels of a token, starting at `channel`. A negative `token` is before the
  // segment.
  template <class Use>
  PRIMUS_INLINE void each(std::int64_t segment, std::int64_t token, std::int64_t channel, std::int64_t count,
                          Use use) const {
    if (token < 0) {
      const float* u = before + (segment * (s.width - 1) + s.width - 1 + token) * s.channels + channel;
      PRIMUS_SIMD()
      for (std::int64_t i = 0; i < count; ++i) use(i, u[i]);
      return;
    }
    each_of(row(segment, token) + channel, s.channels, count, use);
  }
  // Like each(), but for a token whose channels begin at address `b`. `channels` is the number of channels of
  // a row.
  template <class Use>
  static PRIMUS_INLINE void each_of(const T* b, std::int64_t channels, std::int64_t count, Use use) {
    const T* x = b + (kParts - 1) * channels;
    PRIMUS_SIMD()
    for (std::int64_t i = 0; i < count; ++i) use(i, kSilu ? to_float(x[i]) : to_float(b[i]) * to_float(x[i]));
  }
  // Computes the output of a token from the token's sums. `c` points to the token's second gate.
  static PRIMUS_INLINE void finish(const float* sum, const T* c, std::int64_t count, T* out) {
    PRIMUS_SIMD()
    for (std::int64_t i = 0; i < count; ++i)
      out[i] = from_float<T>(kSilu ? silu(sum[i]) : to_float(c[i]) * sum[i]);
  }
  // Computes the sums of the convolution.
  template <class Weights>
  PRIMUS_INLINE void convolve(std::int64_t segment, std::int64_t token, std::int64_t channel,
                              std::int64_t count, const Weights& weight, const float* bias,
                              float* sum) const {
    for (std::int64_t i = 0; i < count; ++i) sum[i] = bias ? bias[channel + i] : 0.0F;
    for (std::int64_t d = reach(segment, token); d >= 0; --d) {
      const float* w = weight.of(d);
      each(segment, token - d, channel, count,
           [=](std::int64_t i, float u) { sum[i] = multiply_add(w[i], u, sum[i]); });
    }
  }
  // Computes the gradient of a token's sums.
  template <class Weights>
  PRIMUS_INLINE void gradient(std::int64_t segment, std::int64_t token, std::int64_t channel,
                              std::int64_t count, const Weights& weight, const float* bias, const T* d_y,
                              float* d_sum) const {
    const T* d_out = d_y + (segment * s.tokens + token) * s.channels + channel;
    if constexpr (kSilu) {
      convolve(segment, token, channel, count, weight, bias, d_sum);
      PRIMUS_SIMD()
      for (std::int64_t i = 0; i < count; ++i) {
        const float sum = d_sum[i];
        d_sum[i] = to_float(d_out[i]) * silu_slope(sum, sigmoid(sum));
      }
    } else {
      const T* c = row(segment, token) + s.channels + channel;
      PRIMUS_SIMD()
      for (std::int64_t i = 0; i < count; ++i) d_sum[i] = to_float(d_out[i]) * to_float(c[i]);
    }
  }

  CausalConvShape s;
  const T* bcx;
  const float* before;
  const std::int32_t* first_key;
};

// Computes gradients of convolution sums for a block of channels. Holds the gradients of all tokens that see
// the current token. Tokens are visited in order, and each gradient is computed only once.
template <class T, bool kSilu>
class GradientRows {
 public:
  GradientRows(const Inputs<T, kSilu>& in, std::int64_t channel, std::int64_t count, const Lines& weight,
               const float* bias, const T* d_y)
      : in_(in), channel_(channel), count_(count), weight_(weight), bias_(bias), d_y_(d_y) {}

  // Adds to `sum` the gradient of u at `token`, as far as it comes from token `token` + `from` and later
  // tokens.
  PRIMUS_INLINE void add(std::int64_t segment, std::int64_t token, std::int64_t from, float* sum) {
    const std::int64_t end = std::min(token + in_.s.width, in_.s.tokens);
    if (segment != segment_) segment_ = segment, known_ = token + from;
    for (; known_ < end; ++known_)
      in_.gradient(segment, known_, channel_, count_, weight_, bias_, d_y_, of(known_));
    for (std::int64_t d = from; token + d < end; ++d) {
      if (in_.reach(segment, token + d) < d) continue;
      const float *w = weight_.of(d), *e = of(token + d);
      PRIMUS_SIMD()
      for (std::int64_t i = 0; i < count_; ++i) sum[i] = multiply_add(w[i], e[i], sum[i]);
    }
  }

 private:
  float* of(std::int64_t token) { return rows_[token % CausalConvShape::kMaxWidth]; }

  const Inputs<T, kSilu>& in_;
  std::int64_t channel_, count_;
  const Lines& weight_;
  const float* bias_;
  const T* d_y_;
  std::int64_t segment_ = -1, known_ = 0;  // current segment, and its first token without a gradient
  float rows_[CausalConvShape::kMaxWidth][kChannels];
};

// Calls body(channel, count) for blocks of the channels [begin, end).
template <class Body>
PRIMUS_INLINE void for_each_block(std::int64_t begin, std::int64_t end, Body body) {
  for (std::int64_t channel = begin; channel < end; channel += kChannels)
    body(channel, std::min(kChannels, end - channel));
}

void forward(CpuContext& context, const CausalConvForward& a) {
  with_type_and_form(a.bcx.dtype, a.shape.form, [&](auto tag, auto silu) {
    using T = decltype(tag);
    const CausalConvShape& s = a.shape;
    const Inputs<T, silu> in(context, s, a.bcx, a.before, a.first_key);
    const auto* weight = context.data<const T>(a.weight);
    const auto* bias = optional<float>(context, a.bias);
    T* const y = context.data<T>(a.y);
    parallel_ranges(context, s.rows(), 4 * s.channels * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      for_each_block(0, s.channels, [&](std::int64_t channel, std::int64_t count) {
        const Lines lines(weight, channel, count, s.width);
        float sum[kChannels];
        for (std::int64_t row = begin; row < end; ++row) {
          in.convolve(row / s.tokens, row % s.tokens, channel, count, lines, bias, sum);
          const T* c = silu ? nullptr : in.bcx + (3 * row + 1) * s.channels + channel;
          in.finish(sum, c, count, y + row * s.channels + channel);
        }
      });
    });
  });
}

void backward_input(CpuContext& context, const CausalConvBackwardInput& a) {
  with_type_and_form(a.bcx.dtype, a.shape.form, [&](auto tag, auto silu) {
    using T = decltype(tag);
    const CausalConvShape& s = a.shape;
    const Inputs<T, silu> in(context, s, a.bcx, a.before, a.first_key);
    const auto* weight = context.data<const T>(a.weight);
    const auto *bias = optional<float>(context, a.bias), *after = optional<float>(context, a.d_after);
    const T* const d_y = context.data<const T>(a.d_y);
    T* const d_bcx = context.data<T>(a.d_bcx);
    parallel_ranges(context, s.rows(), 7 * s.channels * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      for_each_block(0, s.channels, [&](std::int64_t channel, std::int64_t count) {
        const Lines lines(weight, channel, count, s.width);
        GradientRows<T, silu> gradients(in, channel, count, lines, bias, d_y);
        float sum[kChannels];
        for (std::int64_t row = begin; row < end; ++row) {
          const std::int64_t segment = row / s.tokens, token = row % s.tokens;
          const std::int64_t edge = token - (s.tokens - (s.width - 1));
          const T* b = in.row(segment, token) + channel;
          T* d_b = d_bcx + row * s.columns() + channel;
          if constexpr (!silu) {
            const T* d_out = d_y + row * s.channels + channel;
            T* d_c = d_b + s.channels;
            in.convolve(segment, token, channel, count, lines, bias, sum);
            PRIMUS_SIMD()
            for (std::int64_t i = 0; i < count; ++i) d_c[i] = from_float<T>(to_float(d_out[i]) * sum[i]);
          }
          const float* more =
              after && edge >= 0 ? after + (segment * (s.width - 1) + edge) * s.channels + channel : nullptr;
          for (std::int64_t i = 0; i < count; ++i) sum[i] = more ? more[i] : 0.0F;
          gradients.add(segment, token, 0, sum);
          if constexpr (silu) {
            PRIMUS_SIMD()
            for (std::int64_t i = 0; i < count; ++i) d_b[i] = from_float<T>(sum[i]);
          } else {
            const T* x = b + 2 * s.channels;
            T* d_x = d_b + 2 * s.channels;
            PRIMUS_SIMD()
            for (std::int64_t i = 0; i < count; ++i) {
              d_b[i] = from_float<T>(sum[i] * to_float(x[i]));
              d_x[i] = from_float<T>(sum[i] * to_float(b[i]));
            }
          }
        }
      });
    });
  });
}

std::int64_t weight_columns(const CausalConvBackwardWeight& a) {
  return a.shape.channels * (a.of_bias ? 1 : a.shape.width);
}

// The workspace consists of the workspace of a sum over rows, followed by space for all weights.
std::int64_t backward_weight_workspace(CpuContext&, const CausalConvBackwardWeight& a) {
  const std::int64_t lines = a.shape.form == CausalConvShape::Form::kSilu
                                 ? a.shape.channels * a.shape.width * static_cast<std::int64_t>(sizeof(float))
                                 : 0;
  return row_sum_workspace(a.shape.rows(), weight_columns(a)) + lines;
}

void backward_weight(CpuContext& context, const CausalConvBackwardWeight& a) {
  with_type_and_form(a.bcx.dtype, a.shape.form, [&](auto tag, auto silu) {
    using T = decltype(tag);
    const CausalConvShape& s = a.shape;
    const Inputs<T, silu> in(context, s, a.bcx, a.before, a.first_key);
    const T* const d_y = context.data<const T>(a.d_y);
    const auto* const bias = optional<float>(context, a.bias);
    const bool of_bias = a.of_bias;
    auto* const workspace = context.data<float>(a.workspace);
    float* const lines = workspace + row_sum_workspace(s.rows(), weight_columns(a)) / sizeof(float);
    if constexpr (silu) AllLines::fill(context.data<const T>(a.weight), s.channels, s.width, lines);
    row_sum(context, s.rows(), weight_columns(a), workspace, a.d_weight, a.accumulate,
            [&](float* line, std::int64_t row) {
              const std::int64_t segment = row / s.tokens, token = row % s.tokens;
              float d_sum[kChannels];
              for_each_block(0, s.channels, [&](std::int64_t channel, std::int64_t count) {
                in.gradient(segment, token, channel, count, AllLines{lines + channel, s.channels}, bias, d_y,
                            d_sum);
                if (of_bias) {
                  for (std::int64_t i = 0; i < count; ++i) line[channel + i] += d_sum[i];
                  return;
                }
                for (std::int64_t d = in.reach(segment, token); d >= 0; --d) {
                  float* to = line + channel * s.width + s.width - 1 - d;
                  const std::int64_t width = s.width;
                  in.each(segment, token - d, channel, count, [&](std::int64_t i, float u) {
                    to[i * width] = multiply_add(d_sum[i], u, to[i * width]);
                  });
                }
              });
            });
  });
}

void edge(CpuContext& context, const CausalConvEdge& a) {
  with_type_and_form(a.bcx.dtype, a.shape.form, [&](auto tag, auto silu) {
    using T = decltype(tag);
    const CausalConvShape& s = a.shape;
    const Inputs<T, silu> in(context, s, a.bcx, {}, {});
    auto* const out = context.data<float>(a.edge);
    const std::int64_t rows = s.width - 1;
    for (std::int64_t row = 0; row < s.segments * rows; ++row) {
      float* to = out + row * s.channels;
      in.each(row / rows, s.tokens - rows + row % rows, 0, s.channels,
              [=](std::int64_t i, float u) { to[i] = u; });
    }
  });
}

void backward_edge(CpuContext& context, const CausalConvBackwardEdge& a) {
  with_type_and_form(a.bcx.dtype, a.shape.form, [&](auto tag, auto silu) {
    using T = decltype(tag);
    const CausalConvShape& s = a.shape;
    const Inputs<T, silu> in(context, s, a.bcx, a.before, a.first_key);
    const auto* const bias = optional<float>(context, a.bias);
    auto* const out = context.data<float>(a.d_edge);
    const std::int64_t rows = s.width - 1;
    for_each_block(0, s.channels, [&](std::int64_t channel, std::int64_t count) {
      const Lines lines(context.data<const T>(a.weight), channel, count, s.width);
      GradientRows<T, silu> gradients(in, channel, count, lines, bias, context.data<const T>(a.d_y));
      for (std::int64_t row = 0; row < s.segments * rows; ++row) {
        float* to = out + row * s.channels + channel;
        std::fill_n(to, count, 0.0F);
        const std::int64_t distance = rows - row % rows;  // distance to the segment's first token
        gradients.add(row / rows, -distance, distance, to);
      }
    });
  });
}

void cached(CpuContext& context, const CachedCausalConv& a) {
  with_type_and_form(a.bcx.dtype, a.form, [&](auto tag, auto silu) {
    using T = decltype(tag);
    using Rows = Inputs<T, silu>;
    const std::int64_t channels = a.y.cols(), size = a.ring.shape[1], batch = a.sequences.batch();
    const auto* const starts = context.data<const std::int32_t>(a.sequences.query_starts);
    const auto* const lengths = context.data<const std::int32_t>(a.sequences.key_lengths);
    const auto* const bias = optional<float>(context, a.bias);
    const auto* const weight = context.data<const T>(a.weight);
    const T* const bcx = context.data<T>(a.bcx);
    T* const y = context.data<T>(a.y);
    const auto read = [&](const Lines& lines, std::int64_t channel, std::int64_t count) {
      for (std::int64_t b = 0; b < batch; ++b) {
        float* const ring = context.data<float>(a.ring) + b * size * channels + channel;
        for (std::int64_t row = starts[b]; row < starts[b + 1]; ++row) {
          const std::int64_t position = lengths[b] - starts[b + 1] + row;
          const T* const parts = bcx + Rows::kParts * row * channels + channel;
          float* const own = ring + position % size * channels;
          Rows::each_of(parts, channels, count, [=](std::int64_t i, float u) { own[i] = u; });
          float sum[kChannels];
          for (std::int64_t i = 0; i < count; ++i) sum[i] = bias ? bias[channel + i] : 0.0F;
          for (std::int64_t d = std::min(a.width - 1, position); d >= 0; --d) {
            const float *w = lines.of(d), *u = ring + (position - d) % size * channels;
            PRIMUS_SIMD()
            for (std::int64_t i = 0; i < count; ++i) sum[i] = multiply_add(w[i], u[i], sum[i]);
          }
          Rows::finish(sum, silu ? nullptr : parts + channels, count, y + row * channels + channel);
        }
      }
      for (std::int64_t row = starts[batch]; row < a.y.rows(); ++row)
        std::fill_n(y + row * channels + channel, count, T{});
    };
    parallel_ranges(context, channels, 4 * a.y.rows() * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      for_each_block(begin, end, [&](std::int64_t channel, std::int64_t count) {
        read(Lines(weight, channel, count, a.width), channel, count);
      });
    });
  });
}

}  // namespace

void register_causal_conv(KernelTable& table) {
  table.add<CausalConvForward, CpuContext, &forward>();
  table.add<CausalConvBackwardInput, CpuContext, &backward_input>();
  table.add<CausalConvBackwardWeight, CpuContext, &backward_weight, &backward_weight_workspace>();
  table.add<CausalConvEdge, CpuContext, &edge>();
  table.add<CausalConvBackwardEdge, CpuContext, &backward_edge>();
  table.add<CachedCausalConv, CpuContext, &cached>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
