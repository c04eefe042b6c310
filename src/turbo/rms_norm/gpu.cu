// A block processes a long row in two passes; the second pass reads the row from the cache. If a row fits
// into the registers of a warp, one warp processes the row.
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/rms_norm/formula.h"
#include "turbo/rms_norm/rms_norm.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// Loads adjacent weights and adds the offset.
template <int kCount, class T>
PRIMUS_DEVICE void load_weights(const T* weight, float offset, float (&w)[kCount]) {
  load<kCount>(weight, w);
  PRIMUS_UNROLL
  for (int k = 0; k < kCount; ++k) w[k] += offset;
}

template <class T, int kCount>
struct Forward {
  static constexpr int kThreads = 256;
  using StartsEarly = void;
  const T *x, *delta, *weight;
  T *sum, *y;
  float* rstd;
  std::int64_t hidden;
  float eps, offset;

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    for (std::int64_t i = thread() * kCount; i < hidden; i += kThreads * kCount) prefetch(weight + i);
    wait_for_previous();
    const std::int64_t at = block() * hidden;
    const T* normed = delta ? sum + at : x + at;
    float squares = 0;
    for (std::int64_t i = thread() * kCount; i < hidden; i += kThreads * kCount) {
      float v[kCount];
      load<kCount>(x + at + i, v);
      if (delta) {
        float d[kCount];
        load<kCount>(delta + at + i, d);
        // The norm uses the sum as it is stored, that is, after rounding.
        PRIMUS_UNROLL
        for (int k = 0; k < kCount; ++k) v[k] = to_float(from_float<T>(v[k] + d[k]));
        store<kCount>(sum + at + i, v);
      }
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) squares = multiply_add(v[k], v[k], squares);
    }
    squares = block_reduce<kThreads>(squares);
    const float scale = inverse_rms(squares, hidden, eps);
    if (thread() == 0) rstd[block()] = scale;
    for (std::int64_t i = thread() * kCount; i < hidden; i += kThreads * kCount) {
      float v[kCount], w[kCount];
      load<kCount>(normed + i, v);  // loads elements that this thread has written, so no barrier is needed
      load_weights<kCount>(weight + i, offset, w);
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) v[k] = norm_output(v[k], scale, w[k]);
      store<kCount>(y + at + i, v);
    }
  }
};

// A row in the registers of a warp. Each lane holds kPieces groups of kCount adjacent elements.
template <int kCount>
struct WarpRow {
  static constexpr int kThreads = 256, kWarps = kThreads / kWarp, kPieces = 4;
  static constexpr std::int64_t kMax = std::int64_t{kPieces} * kWarp * kCount;  // columns

  static std::int64_t blocks(std::int64_t rows) { return blocks_for(rows, kWarps); }
  PRIMUS_DEVICE static std::int64_t row() { return block() * kWarps + warp(); }
  PRIMUS_DEVICE static std::int64_t column(int piece) {
    return (std::int64_t{piece} * kWarp + lane()) * kCount;
  }
};

template <class T, int kCount>
struct ForwardByWarps {
  using Row = WarpRow<kCount>;
  static constexpr int kThreads = Row::kThreads, kPieces = Row::kPieces;
  using StartsEarly = void;
  const T *x, *delta, *weight;
  T *sum, *y;
  float* rstd;
  std::int64_t rows, hidden;
  float eps, offset;

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    const std::int64_t row = Row::row(), at = row * hidden;
    PRIMUS_UNROLL
    for (int p = 0; p < kPieces; ++p) {
      if (row < rows && Row::column(p) < hidden) prefetch(weight + Row::column(p));
    }
    wait_for_previous();
    if (row >= rows) return;
    // All loads come before the first store, which they could not pass.
    float v[kPieces][kCount] = {}, d[kPieces][kCount] = {};
    float squares = 0;
    PRIMUS_UNROLL
    for (int p = 0; p < kPieces; ++p) {
      const std::int64_t i = Row::column(p);
      if (i >= hidden) continue;
      load<kCount>(x + at + i, v[p]);
      if (delta) load<kCount>(delta + at + i, d[p]);
    }
    PRIMUS_UNROLL
    for (int p = 0; p < kPieces; ++p) {
      const std::int64_t i = Row::column(p);
      if (i >= hidden) continue;
      if (delta) {
        PRIMUS_UNROLL
        for (int k = 0; k < kCount; ++k) v[p][k] = to_float(from_float<T>(v[p][k] + d[p][k]));
        store<kCount>(sum + at + i, v[p]);
      }
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) squares = multiply_add(v[p][k], v[p][k], squares);
    }
    squares = warp_reduce(squares);
    const float scale = inverse_rms(squares, hidden, eps);
    if (lane() == 0) rstd[row] = scale;
    PRIMUS_UNROLL
    for (int p = 0; p < kPieces; ++p) {
      const std::int64_t i = Row::column(p);
      if (i >= hidden) continue;
      float w[kCount];
      load_weights<kCount>(weight + i, offset, w);
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) w[k] = norm_output(v[p][k], scale, w[k]);
      store<kCount>(y + at + i, w);
    }
  }
};

void forward(Context& context, const RmsNormForward& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T *x = context.data<T>(a.x), *delta = optional<T>(context, a.delta), *w = context.data<T>(a.weight);
    T *sum = optional<T>(context, a.sum), *y = context.data<T>(a.y);
    float* rstd = context.data<float>(a.rstd);
    const std::int64_t rows = a.x.rows(), hidden = a.x.cols();
    with_vector<T>(rows_of_vectors<T>(hidden, x, delta, w, sum, y), [&](auto count) {
      using Row = WarpRow<count>;
      if (hidden <= Row::kMax) {
        launch(context, Row::blocks(rows),
               ForwardByWarps<T, count>{x, delta, w, sum, y, rstd, rows, hidden, a.eps, a.offset});
      } else {
        launch(context, rows, Forward<T, count>{x, delta, w, sum, y, rstd, hidden, a.eps, a.offset});
      }
    });
  });
}

// Computes d_x = d_sum + NormGradient; the gradient of the normalised values is d_y * weight.
template <class T, int kCount>
struct BackwardInput {
  static constexpr int kThreads = 256;
  const T *x, *weight;
  const float* rstd;
  const T *d_y, *d_sum;
  T* d_x;
  std::int64_t hidden;
  float offset;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t at = block() * hidden;
    const float scale = rstd[block()];
    float dot = 0;
    for (std::int64_t i = thread() * kCount; i < hidden; i += kThreads * kCount) {
      float v[kCount], w[kCount], d[kCount];
      load<kCount>(x + at + i, v);
      load_weights<kCount>(weight + i, offset, w);
      load<kCount>(d_y + at + i, d);
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) dot = multiply_add(d[k] * w[k], v[k], dot);
    }
    dot = block_reduce<kThreads>(dot);
    const NormGradient gradient(dot, scale, hidden);
    for (std::int64_t i = thread() * kCount; i < hidden; i += kThreads * kCount) {
      float v[kCount], w[kCount], d[kCount];
      load<kCount>(x + at + i, v);
      load_weights<kCount>(weight + i, offset, w);
      load<kCount>(d_y + at + i, d);
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) d[k] = gradient(d[k] * w[k], v[k]);
      if (d_sum) {
        load<kCount>(d_sum + at + i, v);
        PRIMUS_UNROLL
        for (int k = 0; k < kCount; ++k) d[k] += v[k];
      }
      store<kCount>(d_x + at + i, d);
    }
  }
};

// Each block processes consecutive rows, with one warp per row. If `lines` is not null, the block stores its
// sums for d_weight in its own line.
template <class T, int kCount, bool kWeight>
struct BackwardByWarps {
  using Row = WarpRow<kCount>;
  static constexpr int kThreads = Row::kThreads, kWarps = Row::kWarps, kPieces = Row::kPieces;
  const T *x, *weight;
  const float* rstd;
  const T *d_y, *d_sum;
  T* d_x;
  float* lines;
  std::int64_t rows, hidden, rows_per_block;
  float offset;

  PRIMUS_DEVICE void operator()() const {
    float sums[kPieces][kCount] = {};
    const std::int64_t end = smaller((block() + 1) * rows_per_block, rows);
    for (std::int64_t row = block() * rows_per_block + warp(); row < end; row += kWarps) {
      const std::int64_t at = row * hidden;
      const float scale = rstd[row];
      float v[kPieces][kCount] = {}, d[kPieces][kCount] = {};
      float dot = 0;
      PRIMUS_UNROLL
      for (int p = 0; p < kPieces; ++p) {
        const std::int64_t i = Row::column(p);
        if (i >= hidden) continue;
        load<kCount>(x + at + i, v[p]);
        load<kCount>(d_y + at + i, d[p]);
      }
      PRIMUS_UNROLL
      for (int p = 0; p < kPieces; ++p) {
        const std::int64_t i = Row::column(p);
        if (i >= hidden) continue;
        float w[kCount];
        load_weights<kCount>(weight + i, offset, w);
        PRIMUS_UNROLL
        for (int k = 0; k < kCount; ++k) {
          if constexpr (kWeight) sums[p][k] += norm_weight_term(d[p][k], v[p][k], scale);
          d[p][k] *= w[k];
          dot = multiply_add(d[p][k], v[p][k], dot);
        }
      }
      dot = warp_reduce(dot);
      const NormGradient gradient(dot, scale, hidden);
      PRIMUS_UNROLL
      for (int p = 0; p < kPieces; ++p) {
        const std::int64_t i = Row::column(p);
        if (i >= hidden) continue;
        PRIMUS_UNROLL
        for (int k = 0; k < kCount; ++k) d[p][k] = gradient(d[p][k], v[p][k]);
        if (d_sum) {
          load<kCount>(d_sum + at + i, v[p]);
          PRIMUS_UNROLL
          for (int k = 0; k < kCount; ++k) d[p][k] += v[p][k];
        }
        store<kCount>(d_x + at + i, d[p]);
      }
    }
    if constexpr (kWeight) add_up(sums);
  }

  // Adds the sums of all warps in warp order.
  PRIMUS_DEVICE void add_up(const float (&sums)[kPieces][kCount]) const {
    struct Parts {
      float of_warp[kWarps][Row::kMax];
    };
    Parts& parts = shared<Parts>();
    PRIMUS_UNROLL
    for (int p = 0; p < kPieces; ++p) {
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) parts.of_warp[warp()][Row::column(p) + k] = sums[p][k];
    }
    barrier();
    for (std::int64_t i = thread(); i < hidden; i += kThreads) {
      float sum = 0;
      PRIMUS_UNROLL
      for (int w = 0; w < kWarps; ++w) sum += parts.of_warp[w][i];
      lines[block() * hidden + i] = sum;
    }
  }
};

// Max. number of blocks, each with one line of partial sums. This number keeps a GPU busy.
constexpr std::int64_t kLines = 256;

template <class T, int kNeighbours>
struct WeightTerm {
  static constexpr int kCount = kNeighbours;
  const T *x, *d_y;
  const float* rstd;
  std::int64_t hidden;
  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t i, float (&value)[kCount]) const {
    const float scale = rstd[row];
    float v[kCount];
    load<kCount>(x + row * hidden + i, v);
    load<kCount>(d_y + row * hidden + i, value);
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) value[k] *= v[k] * scale;
  }
};

std::int64_t backward_weight_workspace(Context&, const RmsNormBackwardWeight& a) {
  return row_sum_workspace(a.x.rows(), a.x.cols());
}

void backward_weight(Context& context, const RmsNormBackwardWeight& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T *x = context.data<T>(a.x), *d_y = context.data<T>(a.d_y);
    with_vector<T>(rows_of_vectors<T>(a.x.cols(), x, d_y), [&](auto count) {
      row_sum(context, a.x.rows(), a.x.cols(), context.data<float>(a.workspace), a.d_weight, a.accumulate,
              WeightTerm<T, count>{x, d_y, context.data<float>(a.rstd), a.x.cols()});
    });
  });
}

std::int64_t backward_input_workspace(Context&, const RmsNormBackwardInput& a) {
  if (a.d_weight.absent()) return 0;
  const std::int64_t lines = kLines * a.x.cols() * static_cast<std::int64_t>(sizeof(float));
  return std::max(lines, row_sum_workspace(a.x.rows(), a.x.cols()));
}

// Processes rows that fit into the registers of a warp.
template <class T, int kCount>
void backward_by_warps(Context& context, const RmsNormBackwardInput& a) {
  constexpr int kWarps = WarpRow<kCount>::kWarps;
  const std::int64_t rows = a.x.rows(), hidden = a.x.cols();
  const bool weight = !a.d_weight.absent();
  const std::int64_t rows_per_block =
      weight ? std::max<std::int64_t>(blocks_for(blocks_for(rows, kLines), kWarps), 1) * kWarps : kWarps;
  const std::int64_t blocks = blocks_for(rows, rows_per_block);
  auto* const lines = weight ? context.data<float>(a.workspace) : nullptr;
  with_flag(weight, [&](auto of_weight) {
    launch(context, blocks,
           BackwardByWarps<T, kCount, of_weight>{context.data<T>(a.x), context.data<T>(a.weight),
                                                 context.data<float>(a.rstd), context.data<T>(a.d_y),
                                                 optional<T>(context, a.d_sum), context.data<T>(a.d_x), lines,
                                                 rows, hidden, rows_per_block, a.offset});
  });
  if (weight) sum_of_lines(context, lines, hidden, blocks, a.d_weight, a.accumulate);
}

void backward_input(Context& context, const RmsNormBackwardInput& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T *x = context.data<T>(a.x), *w = context.data<T>(a.weight), *d_y = context.data<T>(a.d_y);
    const T* d_sum = optional<T>(context, a.d_sum);
    T* d_x = context.data<T>(a.d_x);
    const std::int64_t hidden = a.x.cols();
    with_vector<T>(rows_of_vectors<T>(hidden, x, w, d_y, d_sum, d_x), [&](auto count) {
      if (hidden <= WarpRow<count>::kMax) return backward_by_warps<T, count>(context, a);
      // Computes d_weight before d_x, because d_x may share the memory of d_y.
      if (!a.d_weight.absent()) {
        backward_weight(context, {.x = a.x,
                                  .rstd = a.rstd,
                                  .d_y = a.d_y,
                                  .d_weight = a.d_weight,
                                  .accumulate = a.accumulate,
                                  .workspace = a.workspace});
      }
      launch(context, a.x.rows(),
             BackwardInput<T, count>{x, w, context.data<float>(a.rstd), d_y, d_sum, d_x, hidden, a.offset});
    });
  });
}

}  // namespace

void register_rms_norm(KernelTable& table) {
  table.add<RmsNormForward, Context, &forward>();
  table.add<RmsNormBackwardInput, Context, &backward_input, &backward_input_workspace>();
  table.add<RmsNormBackwardWeight, Context, &backward_weight, &backward_weight_workspace>();
}

}  // namespace primus::turbo::PRIMUS_GPU
