// A thread has neighbouring channels, whose weights it keeps, of a run of tokens, and takes what goes into
// the convolution along as a window that slides over them: a token is loaded once, but for those in front of
// a run.
#include <type_traits>

#include "turbo/attention/gpu_paged.h"
#include "turbo/causal_conv/causal_conv.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// Weights of neighbouring channels at a distance from the token.
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
  for (int k = 0; k < kCount; ++k) x[k] *= sigmoid(x[k]);
}

// x = the slope of silu(x)
template <int kCount>
PRIMUS_DEVICE void slope(float (&x)[kCount]) {
  PRIMUS_UNROLL
  for (int k = 0; k < kCount; ++k) {
    const float gate = sigmoid(x[k]);
    x[k] = gate * (1.0F + x[k] * (1.0F - gate));
  }
}

// What goes into the convolution, and which of it a token sees.
template <class T, bool kSilu>
struct Inputs {
  static constexpr int kParts = kSilu ? 1 : 3;  // of a row, each as wide as the channels
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

  // Tokens before this one that it sees.
  PRIMUS_DEVICE std::int64_t reach(std::int64_t segment, std::int64_t token) const {
    const std::int64_t position = (segment % 2 == 0 ? first_of_even : first_of_odd) + token;
    const std::int64_t first = first_key ? first_key[segment * tokens + token] : 0;
    return larger(smaller(position - first, width - 1), 0);
  }
  PRIMUS_DEVICE const T* row(std::int64_t segment, std::int64_t token) const {
    return bcx + (segment * tokens + token) * kParts * channels;
  }
  // u of a token, or of one in front of the segment.
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
  // The gradient of a token's sums: d_y * C, or d_y * silu'(sums).
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
  // The weights of the taps, by their distance from the token.
  template <int kTaps, int kCount>
  PRIMUS_DEVICE void load_weights(std::int64_t channel, float (&w)[kTaps][kCount]) const {
    if constexpr (kCount > 1) {  // kTaps == width: those of a channel are neighbours, and so are channels
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
  // The sums of a token, all of whose inputs are read.
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
  // sum += what the tokens from `token` + `from` on say of the gradient of u there. Of tokens in order, each
  // sees no more of what is before all of them than the one before it.
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

// What goes into the convolution, of a token and of those before it: u[d] is that of the token d before.
template <int kCount, int kTaps>
struct Window {
  float u[kTaps][kCount];

  // The next token is this one. What no token can see is not read.
  template <class Inputs>
  PRIMUS_DEVICE void start(const Inputs& in, std::int64_t segment, std::int64_t token, std::int64_t channel) {
    PRIMUS_UNROLL
    for (int d = 1; d < kTaps; ++d) {
      if (d < in.width && (token >= d || in.before)) {
        in.load_input(segment, token - d, channel, u[d - 1]);
      } else {
        start_from(nullptr, u[d - 1]);
      }
    }
  }
  // Moves on to `token`, whose own input `next` is.
  PRIMUS_DEVICE void take(const float (&next)[kCount]) {
    PRIMUS_UNROLL
    for (int d = kTaps - 1; d > 0; --d) {
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) u[d][k] = u[d - 1][k];
    }
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) u[0][k] = next[k];
  }
  // sum += the convolution of what a token with this reach sees.
  PRIMUS_DEVICE void convolve(const float (&w)[kTaps][kCount], std::int64_t reach,
                              float (&sum)[kCount]) const {
    PRIMUS_UNROLL
    for (int d = kTaps - 1; d >= 0; --d) {
      if (d <= reach) add_product(w[d], u[d], sum);
    }
  }
};

// body(segment, first token, end, channel) for all runs of tokens of all channels: a block has neighbouring
// runs of as many channels as a warp holds.
template <class Body, int kCount>
struct EachOfRuns {
  static constexpr int kThreads = 128, kPacks = 32;
  using StartsEarly = void;
  Body body;
  std::int64_t segments, tokens, run, packs, tiles;  // packs of a row, and blocks side by side

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    wait_for_previous();
    const std::int64_t runs = (tokens + run - 1) / run;  // of a segment
    const std::int64_t number = block() / tiles * (kThreads / kPacks) + thread() / kPacks;
    const std::int64_t pack = block() % tiles * kPacks + thread() % kPacks;
    const std::int64_t segment = number / runs, begin = number % runs * run;
    if (segment < segments && pack < packs) body(segment, begin, smaller(begin + run, tokens), pack * kCount);
  }
};
// Runs of kTaps to 4 * kTaps tokens: as long as that leaves every GPU enough threads.
template <int kCount, int kTaps, class Body>
void for_each_of_runs(Context& context, const CausalConvShape& shape, const Body& body) {
  using Kernel = EachOfRuns<Body, kCount>;
  constexpr std::int64_t kEnoughThreads = std::int64_t{1} << 17;
  const std::int64_t packs = shape.channels / kCount, tiles = blocks_for(packs, Kernel::kPacks);
  const std::int64_t run =
      std::clamp<std::int64_t>(shape.rows() * packs / kEnoughThreads, kTaps, std::int64_t{4} * kTaps);
  const std::int64_t runs = shape.segments * blocks_for(shape.tokens, run);
  launch(context, blocks_for(runs, Kernel::kThreads / Kernel::kPacks) * tiles,
         Kernel{body, shape.segments, shape.tokens, run, packs, tiles});
}

// body(channels of a thread, taps), both constants: the usual widths by vectors where that is possible, and
// whatever else channel by channel with as many taps as there can be.
template <class T, class Body>
void with_taps(std::int64_t width, bool vectors, Body&& body) {
  constexpr std::integral_constant<int, kVector<T>> kMany;
  if (vectors && width == 2) return body(kMany, std::integral_constant<int, 2>{});
  if (vectors && width == 3) return body(kMany, std::integral_constant<int, 3>{});
  if (vectors && width == 4) return body(kMany, std::integral_constant<int, 4>{});
  body(std::integral_constant<int, 1>{}, std::integral_constant<int, CausalConvShape::kMaxWidth>{});
}

// body(row, channel) by blocks of kRows rows and as many runs of channels.
template <class Body, int kCount>
struct EachOfTiles {
  static constexpr int kThreads = 256, kRows = 16;
  using StartsEarly = void;
  Body body;
  std::int64_t rows, packs, tiles;  // runs of channels of a row, and blocks side by side

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    wait_for_previous();
    const std::int64_t row = block() / tiles * kRows + thread() / kRows;
    const std::int64_t pack = block() % tiles * kRows + thread() % kRows;
    if (row < rows && pack < packs) body(row, pack * kCount);
  }
};
template <int kCount, class Body>
void for_each_of_tiles(Context& context, std::int64_t rows, std::int64_t channels, const Body& body) {
  using Kernel = EachOfTiles<Body, kCount>;
  const std::int64_t packs = channels / kCount, tiles = blocks_for(packs, Kernel::kRows);
  launch(context, blocks_for(rows, Kernel::kRows) * tiles, Kernel{body, rows, packs, tiles});
}

// Whether as many channels as 16 bytes hold of T can be read at once, of rows in T and of those in fp32.
template <class T, class... Pointers>
bool vectors(std::int64_t channels, const Pointers*... pointers) {
  const auto aligned = []<class U>(const U* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer) % (kVector<T> * sizeof(U)) == 0;
  };
  return channels % kVector<T> == 0 && (... && aligned(pointers));
}

// body(tag of the type, whether the form is kSilu) with both as types.
template <class Body>
void with_type_and_form(DType dtype, CausalConvShape::Form form, Body body) {
  with_float_type(dtype, [&](auto tag) {
    if (form == CausalConvShape::Form::kSilu) return body(tag, std::true_type());
    body(tag, std::false_type());
  });
}

// ---- Training -----------------------------------------------------------------------------------

template <class T, bool kSilu, int kCount, int kTaps>
struct ForwardBody {
  Inputs<T, kSilu> in;
  T* y;

  PRIMUS_DEVICE void operator()(std::int64_t segment, std::int64_t begin, std::int64_t end,
                                std::int64_t channel) const {
    float w[kTaps][kCount];
    in.load_weights(channel, w);
    Window<kCount, kTaps> window;
    window.start(in, segment, begin, channel);
    for (std::int64_t token = begin; token < end; ++token) {
      float u[kCount], sum[kCount];
      in.load_input(segment, token, channel, u);
      window.take(u);
      start_from(in.bias ? in.bias + channel : nullptr, sum);
      window.convolve(w, in.reach(segment, token), sum);
      if constexpr (kSilu) {
        activate(sum);
      } else {
        float c[kCount];
        load<kCount>(in.row(segment, token) + in.channels + channel, c);
        multiply(c, sum);
      }
      store<kCount>(y + (segment * in.tokens + token) * in.channels + channel, sum);
    }
  }
};

void forward(Context& context, const CausalConvForward& a) {
  with_type_and_form(a.bcx.dtype, a.shape.form, [&](auto tag, auto silu) {
    using T = decltype(tag);
    const Inputs<T, silu> in(context, a);
    T* y = context.data<T>(a.y);
    const bool wide = vectors<T>(in.channels, in.bcx, in.weight, in.bias, in.before, y);
    with_taps<T>(in.width, wide, [&](auto count, auto taps) {
      for_each_of_runs<count, taps>(context, a.shape, ForwardBody<T, silu, count, taps>{in, y});
    });
  });
}

// A token's input is in the outputs of the kTaps - 1 behind it, too, so its gradient is complete so many
// tokens later. Its two factors are loaded again then: they are still in the first cache, and registers are
// scarce.
template <class T, bool kSilu, int kCount, int kTaps>
struct BackwardBody {
  static constexpr int kLag = kTaps - 1;
  Inputs<T, kSilu> in;
  const float* d_after;
  T* d_bcx;

  // d[j] and reach[j] are of the token j before, as is the window.
  struct State {
    float w[kTaps][kCount], d[kTaps][kCount];
    Window<kCount, kTaps> window;
    int reach[kTaps];
  };

  PRIMUS_DEVICE void operator()(std::int64_t segment, std::int64_t begin, std::int64_t end,
                                std::int64_t channel) const {
    State s{};
    in.load_weights(channel, s.w);
    s.window.start(in, segment, begin, channel);
    PRIMUS_UNROLL_BY(1)
    for (std::int64_t token = begin; token < end + kLag; ++token) {
      shift(s);
      s.reach[0] = -1;  // behind the segment nobody sees anything
      if (token < in.tokens) take(s, segment, token, end, channel);
      if (token - kLag >= begin) put(s, segment, token - kLag, channel);
    }
  }

 private:
  PRIMUS_DEVICE T* d_row(std::int64_t segment, std::int64_t token) const {
    return d_bcx + (segment * in.tokens + token) * in.kParts * in.channels;
  }
  PRIMUS_DEVICE static void shift(State& s) {
    PRIMUS_UNROLL
    for (int j = kLag; j > 0; --j) {
      s.reach[j] = s.reach[j - 1];
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) s.d[j][k] = s.d[j - 1][k];
    }
  }
  // The next token: the gradient of its sums, and of its second gate, which is the thread's to write within
  // its run.
  PRIMUS_DEVICE void take(State& s, std::int64_t segment, std::int64_t token, std::int64_t end,
                          std::int64_t channel) const {
    s.reach[0] = static_cast<int>(in.reach(segment, token));
    float sum[kCount] = {};
    if (kSilu || token < end) {
      float u[kCount];
      in.load_input(segment, token, channel, u);
      start_from(in.bias ? in.bias + channel : nullptr, sum);
      s.window.take(u);
      s.window.convolve(s.w, s.reach[0], sum);
    }
    load<kCount>(in.d_y + (segment * in.tokens + token) * in.channels + channel, s.d[0]);
    if constexpr (kSilu) {
      slope(sum);
      multiply(sum, s.d[0]);
    } else {
      float c[kCount];
      load<kCount>(in.row(segment, token) + in.channels + channel, c);
      if (token < end) {
        multiply(s.d[0], sum);
        store<kCount>(d_row(segment, token) + in.channels + channel, sum);
      }
      multiply(c, s.d[0]);
    }
  }
  // The gradient of what went in kLag tokens before, or of its factors.
  PRIMUS_DEVICE void put(const State& s, std::int64_t segment, std::int64_t token,
                         std::int64_t channel) const {
    const std::int64_t edge = token - (in.tokens - (in.width - 1));
    float sum[kCount];
    start_from(
        d_after && edge >= 0 ? d_after + (segment * (in.width - 1) + edge) * in.channels + channel : nullptr,
        sum);
    PRIMUS_UNROLL
    for (int d = 0; d < kTaps; ++d) {
      if (s.reach[kLag - d] >= d) add_product(s.w[d], s.d[kLag - d], sum);
    }
    T* const to = d_row(segment, token) + channel;
    if constexpr (kSilu) {
      store<kCount>(to, sum);
    } else {
      const T* const factors = in.row(segment, token) + channel;
      float b[kCount], x[kCount];
      load<kCount>(factors, b);
      load<kCount>(factors + 2 * in.channels, x);
      multiply(sum, b);
      multiply(sum, x);
      store<kCount>(to, x);
      store<kCount>(to + 2 * in.channels, b);
    }
  }
};

void backward_input(Context& context, const CausalConvBackwardInput& a) {
  with_type_and_form(a.bcx.dtype, a.shape.form, [&](auto tag, auto silu) {
    using T = decltype(tag);
    const Inputs<T, silu> in(context, a);
    const auto* after = optional<float>(context, a.d_after);
    T* d_bcx = context.data<T>(a.d_bcx);
    const bool wide = vectors<T>(in.channels, in.bcx, in.weight, in.bias, in.before, in.d_y, after, d_bcx);
    with_taps<T>(in.width, wide, [&](auto count, auto taps) {
      for_each_of_runs<count, taps>(context, a.shape, BackwardBody<T, silu, count, taps>{in, after, d_bcx});
    });
  });
}

// lines[slice][channel][tap] = the sum over the slice's rows, in order: a thread has neighbouring channels.
template <class T, bool kSilu, int kCount, int kTaps>
struct WeightParts {
  static constexpr int kThreads = 256;
  Inputs<T, kSilu> in;
  float* lines;
  std::int64_t rows_per_slice, slices;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t packs = in.channels / kCount, item = block() * kThreads + thread();
    const std::int64_t channel = item % packs * kCount, slice = item / packs;
    if (slice >= slices) return;
    const std::int64_t begin = slice * rows_per_slice, end = smaller(begin + rows_per_slice, in.rows);
    std::int64_t segment = begin / in.tokens, token = begin % in.tokens;
    float sum[kTaps][kCount] = {};
    [[maybe_unused]] float w[kTaps][kCount];
    if constexpr (kSilu) in.load_weights(channel, w);
    for (std::int64_t left = end - begin; left > 0; ++segment, token = 0) {
      const std::int64_t stop = smaller(token + left, in.tokens);
      left -= stop - token;
      Window<kCount, kTaps> window;
      window.start(in, segment, token, channel);
      PRIMUS_UNROLL_BY(2)
      for (; token < stop; ++token) {
        float u[kCount], e[kCount];
        in.load_input(segment, token, channel, u);
        window.take(u);
        const std::int64_t reach = in.reach(segment, token);
        if constexpr (kSilu) {
          float sums[kCount];
          start_from(in.bias ? in.bias + channel : nullptr, sums);
          window.convolve(w, reach, sums);
          slope(sums);
          load<kCount>(in.d_y + (segment * in.tokens + token) * in.channels + channel, e);
          multiply(sums, e);
        } else {
          in.load_gradient(segment, token, channel, e);
        }
        PRIMUS_UNROLL
        for (int d = 0; d < kTaps; ++d) {
          if (d <= reach) add_product(e, window.u[d], sum[d]);
        }
      }
    }
    put(sum, lines + (slice * in.channels + channel) * in.width);
  }

 private:
  PRIMUS_DEVICE void put(const float (&sum)[kTaps][kCount], float* line) const {
    if constexpr (kCount > 1) {  // kTaps == width
      PRIMUS_UNROLL
      for (int part = 0; part < kTaps * kCount; part += 4) {
        float some[4];
        PRIMUS_UNROLL
        for (int i = 0; i < 4; ++i) some[i] = sum[kTaps - 1 - (part + i) % kTaps][(part + i) / kTaps];
        store<4>(line + part, some);
      }
    } else {
      PRIMUS_UNROLL
      for (int d = 0; d < kTaps; ++d) {
        if (d < in.width) line[in.width - 1 - d] = sum[d][0];
      }
    }
  }
};

// A row's gradient of the bias.
template <class T, bool kSilu, int kVectors>
struct BiasTerm {
  static constexpr int kCount = kVectors;
  Inputs<T, kSilu> in;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t channel, float (&d)[kCount]) const {
    in.load_gradient(row / in.tokens, row % in.tokens, channel, d);
  }
};

std::int64_t weight_columns(const CausalConvBackwardWeight& a) {
  return a.shape.channels * (a.of_bias ? 1 : a.shape.width);
}

std::int64_t backward_weight_workspace(Context&, const CausalConvBackwardWeight& a) {
  return row_sum_workspace(a.shape.rows(), weight_columns(a));
}

void backward_weight(Context& context, const CausalConvBackwardWeight& a) {
  const std::int64_t columns = weight_columns(a);
  const RowSlices slices(a.shape.rows(), columns);
  auto* const lines = context.data<float>(a.workspace);
  with_type_and_form(a.bcx.dtype, a.shape.form, [&](auto tag, auto silu) {
    using T = decltype(tag);
    const Inputs<T, silu> in(context, a);
    const bool wide = vectors<T>(in.channels, in.bcx, in.weight, in.bias, in.before, in.d_y, lines);
    if (a.of_bias) {
      return with_vector<T>(wide, [&](auto count) {
        row_sum(context, in.rows, columns, lines, a.d_weight, a.accumulate, BiasTerm<T, silu, count>{in});
      });
    }
    with_taps<T>(in.width, wide, [&](auto count, auto taps) {
      using Kernel = WeightParts<T, silu, count, taps>;
      launch(context, blocks_for(in.channels / count * slices.count, Kernel::kThreads),
             Kernel{in, lines, slices.rows_per_slice, slices.count});
    });
    sum_of_lines(context, lines, columns, slices.count, a.d_weight, a.accumulate);
  });
}

// ---- Edges of segments: a few rows --------------------------------------------------------------

template <class T, bool kSilu>
struct EdgeBody {
  Inputs<T, kSilu> in;
  float* edge;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t channel) const {
    float u[1];
    const std::int64_t rows = in.width - 1;
    in.load_input(row / rows, in.tokens - rows + row % rows, channel, u);
    edge[row * in.channels + channel] = u[0];
  }
};

void edge(Context& context, const CausalConvEdge& a) {
  with_type_and_form(a.bcx.dtype, a.shape.form, [&](auto tag, auto silu) {
    using T = decltype(tag);
    for_each_of_rows<1>(context, a.edge.shape[0], a.shape.channels,
                        EdgeBody<T, silu>{Inputs<T, silu>(context, a), context.data<float>(a.edge)});
  });
}

template <class T, bool kSilu>
struct BackwardEdgeBody {
  Inputs<T, kSilu> in;
  float* d_edge;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t channel) const {
    float sum[1] = {};
    const std::int64_t rows = in.width - 1, distance = rows - row % rows;  // to the segment's first token
    in.add_gradient(row / rows, -distance, distance, channel, sum);
    d_edge[row * in.channels + channel] = sum[0];
  }
};

void backward_edge(Context& context, const CausalConvBackwardEdge& a) {
  with_type_and_form(a.bcx.dtype, a.shape.form, [&](auto tag, auto silu) {
    using T = decltype(tag);
    for_each_of_rows<1>(
        context, a.d_edge.shape[0], a.shape.channels,
        BackwardEdgeBody<T, silu>{Inputs<T, silu>(context, a), context.data<float>(a.d_edge)});
  });
}

// ---- Generation ---------------------------------------------------------------------------------

template <class T, bool kSilu>
struct Cached {
  static constexpr int kParts = kSilu ? 1 : 3;
  Pages pages;
  const T *bcx, *weight;
  const float* bias;
  float* ring;
  T* y;
  std::int64_t rows, channels, width, ring_rows;

  // u of a row of the projection.
  template <int kCount>
  PRIMUS_DEVICE void load_input(std::int64_t row, std::int64_t channel, float (&u)[kCount]) const {
    load<kCount>(bcx + row * kParts * channels + channel, u);
    if constexpr (!kSilu) {
      float x[kCount];
      load<kCount>(bcx + (row * 3 + 2) * channels + channel, x);
      multiply(x, u);
    }
  }
  PRIMUS_DEVICE float* place(std::int64_t sequence, std::int64_t position, std::int64_t channel) const {
    return ring + (sequence * ring_rows + position % ring_rows) * channels + channel;
  }
  // Position of a sequence's row number 0, were it that sequence's.
  PRIMUS_DEVICE std::int64_t origin(std::int64_t sequence) const {
    return pages.lengths[sequence] - pages.starts[sequence + 1];
  }
  template <int kCount>
  PRIMUS_DEVICE void make(std::int64_t sequence, std::int64_t row, std::int64_t channel) const {
    const std::int64_t position = origin(sequence) + row;
    float sum[kCount];
    start_from(bias ? bias + channel : nullptr, sum);
    for (std::int64_t d = smaller(width - 1, position); d >= 0; --d) {
      float u[kCount], w[kCount];
      if (row - d >= pages.starts[sequence]) {
        load_input(row - d, channel, u);
      } else {
        load<kCount>(place(sequence, position - d, channel), u);
      }
      load_weight(weight, width, channel, d, w);
      add_product(w, u, sum);
    }
    if constexpr (kSilu) {
      activate(sum);
    } else {
      float c[kCount];
      load<kCount>(bcx + (row * 3 + 1) * channels + channel, c);
      multiply(c, sum);
    }
    store<kCount>(y + row * channels + channel, sum);
  }
  template <int kCount>
  PRIMUS_DEVICE void keep(std::int64_t sequence, std::int64_t row, std::int64_t channel) const {
    float u[kCount];
    load_input(row, channel, u);
    store<kCount>(place(sequence, origin(sequence) + row, channel), u);
  }
  template <int kCount>
  PRIMUS_DEVICE void clear(std::int64_t row, std::int64_t channel) const {
    const float zero[kCount] = {};
    store<kCount>(y + row * channels + channel, zero);
  }
};

// All rows of a pass, which read what the ring holds before it changes.
template <class T, bool kSilu, int kCount>
struct CachedRows {
  Cached<T, kSilu> all;
  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t channel) const {
    if (row >= all.pages.starts[all.pages.batch]) return all.template clear<kCount>(row, channel);
    all.template make<kCount>(all.pages.sequence_of(row), row, channel);
  }
};

// Then the last ones of each sequence go into the ring: body(number from the end, channel) for each sequence.
template <class T, bool kSilu, int kCount>
struct KeptRows {
  Cached<T, kSilu> all;
  PRIMUS_DEVICE void operator()(std::int64_t item, std::int64_t channel) const {
    const std::int64_t sequence = item / all.ring_rows;
    const std::int64_t row = all.pages.starts[sequence + 1] - 1 - item % all.ring_rows;
    if (row >= all.pages.starts[sequence]) all.template keep<kCount>(sequence, row, channel);
  }
};

// Few rows: both in one launch. A thread has all rows of a sequence, one after the other; that behind the
// last sequence, those of nobody.
template <class T, bool kSilu, int kCount>
struct FewRows {
  Cached<T, kSilu> all;
  PRIMUS_DEVICE void operator()(std::int64_t sequence, std::int64_t channel) const {
    const bool nobody = sequence == all.pages.batch;
    const std::int64_t end = nobody ? all.rows : all.pages.starts[sequence + 1];
    for (std::int64_t row = all.pages.starts[sequence]; row < end; ++row) {
      if (nobody) {
        all.template clear<kCount>(row, channel);
      } else {
        all.template make<kCount>(sequence, row, channel);
      }
    }
    if (nobody) return;
    for (std::int64_t row = larger(all.pages.starts[sequence], end - all.ring_rows); row < end; ++row)
      all.template keep<kCount>(sequence, row, channel);
  }
};

void cached(Context& context, const CachedCausalConv& a) {
  with_type_and_form(a.bcx.dtype, a.form, [&](auto tag, auto silu) {
    using T = decltype(tag);
    const Cached<T, silu> all{Pages(context, a.sequences),
                              context.data<T>(a.bcx),
                              context.data<T>(a.weight),
                              optional<float>(context, a.bias),
                              context.data<float>(a.ring),
                              context.data<T>(a.y),
                              a.y.rows(),
                              a.y.cols(),
                              a.width,
                              a.ring.shape[1]};
    const std::int64_t batch = all.pages.batch;
    with_vector<T>(vectors<T>(all.channels, all.bcx, all.bias, all.ring, all.y), [&](auto count) {
      if (all.rows <= batch)
        return for_each_of_rows<count>(context, batch + 1, all.channels, FewRows<T, silu, count>{all});
      for_each_of_tiles<count>(context, all.rows, all.channels, CachedRows<T, silu, count>{all});
      for_each_of_rows<count>(context, batch * all.ring_rows, all.channels, KeptRows<T, silu, count>{all});
    });
  });
}

}  // namespace

void register_causal_conv(KernelTable& table) {
  table.add<CausalConvForward, Context, &forward>();
  table.add<CausalConvBackwardInput, Context, &backward_input>();
  table.add<CausalConvBackwardWeight, Context, &backward_weight, &backward_weight_workspace>();
  table.add<CausalConvEdge, Context, &edge>();
  table.add<CausalConvBackwardEdge, Context, &backward_edge>();
  table.add<CachedCausalConv, Context, &cached>();
}

}  // namespace primus::turbo::PRIMUS_GPU
