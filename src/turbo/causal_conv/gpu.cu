// A thread makes neighbouring channels of one token and reads the tokens around it again, which the threads
// beside it have brought into the first cache: a block has as many tokens as it has runs of channels.
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
  for (int k = 0; k < kCount; ++k) sum[k] = values ? values[k] : 0.0F;
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
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) {
        const float gate = sigmoid(c[k]);
        c[k] = gate * (1.0F + c[k] * (1.0F - gate));
      }
    } else {
      load<kCount>(row(segment, token) + channels + channel, c);
    }
    multiply(c, d);
  }
  // The sums themselves.
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

template <class T, bool kSilu, int kCount>
struct ForwardBody {
  Inputs<T, kSilu> in;
  T* y;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t channel) const {
    const std::int64_t segment = row / in.tokens, token = row % in.tokens;
    float sum[kCount];
    in.convolve(segment, token, channel, sum);
    if constexpr (kSilu) {
      activate(sum);
    } else {
      float c[kCount];
      load<kCount>(in.row(segment, token) + in.channels + channel, c);
      multiply(c, sum);
    }
    store<kCount>(y + row * in.channels + channel, sum);
  }
};

void forward(Context& context, const CausalConvForward& a) {
  with_type_and_form(a.bcx.dtype, a.shape.form, [&](auto tag, auto silu) {
    using T = decltype(tag);
    const Inputs<T, silu> in(context, a);
    T* y = context.data<T>(a.y);
    with_vector<T>(vectors<T>(in.channels, in.bcx, in.before, y), [&](auto count) {
      for_each_of_tiles<count>(context, in.rows, in.channels, ForwardBody<T, silu, count>{in, y});
    });
  });
}

template <class T, bool kSilu, int kCount>
struct BackwardBody {
  Inputs<T, kSilu> in;
  const float* d_after;
  T* d_bcx;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t channel) const {
    const std::int64_t segment = row / in.tokens, token = row % in.tokens;
    T* const d_b = d_bcx + row * in.kParts * in.channels + channel;
    float sum[kCount], gate[kCount];
    if constexpr (!kSilu) {
      in.convolve(segment, token, channel, sum);
      load<kCount>(in.d_y + row * in.channels + channel, gate);
      multiply(gate, sum);
      store<kCount>(d_b + in.channels, sum);
    }
    const std::int64_t edge = token - (in.tokens - (in.width - 1));
    start_from(
        d_after && edge >= 0 ? d_after + (segment * (in.width - 1) + edge) * in.channels + channel : nullptr,
        sum);
    in.add_gradient(segment, token, 0, channel, sum);
    if constexpr (kSilu) return store<kCount>(d_b, sum);
    const T* const b = in.row(segment, token) + channel;
    float d_x[kCount];
    load<kCount>(b, d_x);
    load<kCount>(b + 2 * in.channels, gate);
    multiply(sum, d_x);
    multiply(sum, gate);
    store<kCount>(d_b, gate);
    store<kCount>(d_b + 2 * in.channels, d_x);
  }
};

void backward_input(Context& context, const CausalConvBackwardInput& a) {
  with_type_and_form(a.bcx.dtype, a.shape.form, [&](auto tag, auto silu) {
    using T = decltype(tag);
    const Inputs<T, silu> in(context, a);
    const auto* after = optional<float>(context, a.d_after);
    T* d_bcx = context.data<T>(a.d_bcx);
    with_vector<T>(vectors<T>(in.channels, in.bcx, in.before, in.d_y, after, d_bcx), [&](auto count) {
      for_each_of_tiles<count>(context, in.rows, in.channels, BackwardBody<T, silu, count>{in, after, d_bcx});
    });
  });
}

// lines[slice][channel][d] = the sum over the slice's rows, in order, for the taps of one group: a thread has
// neighbouring channels, and takes up so many weights of each in one pass over the rows.
template <class T, bool kSilu, int kCount>
struct WeightParts {
  static constexpr int kThreads = 256, kTaps = 4;
  Inputs<T, kSilu> in;
  float* lines;
  std::int64_t rows_per_slice, slices, groups;
  bool of_bias;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t packs = in.channels / kCount, item = block() * kThreads + thread();
    const std::int64_t channel = item % packs * kCount, slice = item / packs % slices;
    const std::int64_t first = item / packs / slices * kTaps;  // distance of the group's nearest tap
    if (item >= packs * slices * groups) return;
    const std::int64_t begin = slice * rows_per_slice, end = smaller(begin + rows_per_slice, in.rows);
    float sum[kTaps][kCount] = {};
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t segment = row / in.tokens, token = row % in.tokens;
      const std::int64_t reach = in.reach(segment, token);
      float e[kCount];
      in.load_gradient(segment, token, channel, e);
      PRIMUS_UNROLL
      for (int tap = 0; tap < kTaps; ++tap) {
        float u[kCount];
        if (first + tap > reach) continue;
        if (of_bias) {
          PRIMUS_UNROLL
          for (int k = 0; k < kCount; ++k) u[k] = 1.0F;
        } else {
          in.load_input(segment, token - first - tap, channel, u);
        }
        add_product(e, u, sum[tap]);
      }
    }
    const std::int64_t columns = of_bias ? 1 : in.width;
    float* const line = lines + (slice * in.channels + channel) * columns;
    PRIMUS_UNROLL
    for (int tap = 0; tap < kTaps; ++tap) {
      if (first + tap >= columns) continue;
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) line[k * columns + columns - 1 - first - tap] = sum[tap][k];
    }
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
    with_vector<T>(vectors<T>(in.channels, in.bcx, in.before, in.d_y), [&](auto count) {
      using Kernel = WeightParts<T, silu, count>;
      const std::int64_t groups = a.of_bias ? 1 : blocks_for(in.width, Kernel::kTaps);
      launch(context, blocks_for(in.channels / count * slices.count * groups, Kernel::kThreads),
             Kernel{in, lines, slices.rows_per_slice, slices.count, groups, a.of_bias});
    });
  });
  sum_of_lines(context, lines, columns, slices.count, a.d_weight, a.accumulate);
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
    with_vector<T>(vectors<T>(all.channels, all.bcx, all.ring, all.y), [&](auto count) {
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
