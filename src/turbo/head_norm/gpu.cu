// A warp processes one head of one token; a lane loads kCount adjacent columns at once.
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/head_norm/head_norm.h"
#include "turbo/rms_norm/formula.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// Common base of the kernels over heads. The columns after the normalised heads together count as one more
// head of the row.
template <class T, int kCount>
struct Heads {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / kWarp;
  std::int64_t rows, width, heads, normed, dim;

  Heads(const HeadNormShape& s, const Tensor& x)
      : rows(x.rows()), width(x.cols()), heads(s.heads), normed(s.normed()), dim(s.head_dim) {}

  // Calls body(row, head) for the head of this warp. The number of heads in all rows is below 2^32.
  template <class Body>
  PRIMUS_DEVICE void each(Body body) const {
    // A 64-bit division would take as long as processing a head.
    const auto item = static_cast<std::uint32_t>(block() * kWarps + warp());
    const auto of_row = static_cast<std::uint32_t>(normed + 1);
    const std::uint32_t row = item / of_row;
    if (row < rows) body(row, item - row * of_row);
  }
  PRIMUS_DEVICE void copy_rest(const T* from, T* to, std::int64_t row) const {
    if (from == to) return;
    for (std::int64_t i = normed * dim + lane() * kCount; i < width; i += kWarp * kCount) {
      float v[kCount];
      load<kCount>(from + row * width + i, v);
      store<kCount>(to + row * width + i, v);
    }
  }
  // Multiplies v by weights [i, i + kCount) of a head.
  PRIMUS_DEVICE void weigh(float (&v)[kCount], const T* weight, float offset, std::int64_t head,
                           std::int64_t i) const {
    if (!weight) return;
    float w[kCount];
    load<kCount>(weight + (head < heads ? 0 : dim) + i, w);
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) v[k] *= w[k] + offset;
  }
};

template <class T, int kCount>
struct Forward : Heads<T, kCount> {
  using Base = Heads<T, kCount>;
  using StartsEarly = void;
  using Base::dim, Base::width, Base::normed;
  const T *x, *weight;
  T* y;
  float* rstd;
  float eps, offset;

  Forward(Context& context, const HeadNormForward& a)
      : Base(a.shape, a.x),
        x(context.data<T>(a.x)),
        weight(optional<T>(context, a.weight)),
        y(context.data<T>(a.y)),
        rstd(context.data<float>(a.rstd)),
        eps(a.eps),
        offset(a.offset) {}

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    wait_for_previous();
    this->each([&](std::int64_t row, std::int64_t head) {
      if (head == normed) return this->copy_rest(x, y, row);
      const T* from = x + row * width + head * dim;
      T* to = y + row * width + head * dim;
      float squares = 0;
      for (std::int64_t i = lane() * kCount; i < dim; i += kWarp * kCount) {
        float v[kCount];
        load<kCount>(from + i, v);
        PRIMUS_UNROLL
        for (int k = 0; k < kCount; ++k) squares = multiply_add(v[k], v[k], squares);
      }
      squares = warp_reduce(squares);
      const float scale = inverse_rms(squares, dim, eps);
      if (lane() == 0) rstd[row * normed + head] = scale;
      for (std::int64_t i = lane() * kCount; i < dim; i += kWarp * kCount) {
        float v[kCount];
        load<kCount>(from + i, v);
        PRIMUS_UNROLL
        for (int k = 0; k < kCount; ++k) v[k] *= scale;
        this->weigh(v, weight, offset, head, i);
        store<kCount>(to + i, v);
      }
    });
  }
};

// Launches a kernel over heads, with four columns per load if the alignment of all addresses allows it.
template <template <class, int> class Kernel, class Arguments, class... Tensors>
void launch_heads(Context& context, const Arguments& a, const Tensors&... tensors) {
  if (a.x.rows() * (a.shape.normed() + 1) > std::numeric_limits<std::uint32_t>::max() - 256)
    throw std::logic_error("gpu: more heads than 32 bits count");
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    constexpr std::int64_t kFour = 4;
    const auto aligned = [&](const Tensor& t) {
      return reinterpret_cast<std::uintptr_t>(t.data) % (kFour * sizeof(T)) == 0;
    };
    const auto run = [&](const auto& kernel) {
      using Heads = std::decay_t<decltype(kernel)>;
      launch(context, blocks_for(kernel.rows * (kernel.normed + 1), Heads::kWarps), kernel);
    };
    if (a.shape.head_dim % kFour == 0 && a.x.cols() % kFour == 0 && (... && aligned(tensors))) {
      run(Kernel<T, kFour>(context, a));
    } else {
      run(Kernel<T, 1>(context, a));
    }
  });
}

void forward(Context& context, const HeadNormForward& a) {
  launch_heads<Forward>(context, a, a.x, a.weight, a.y);
}

// Computes d_x by NormGradient; the gradient of the normalised values is d_y * weight.
template <class T, int kCount>
struct BackwardInput : Heads<T, kCount> {
  using Base = Heads<T, kCount>;
  using Base::dim, Base::width, Base::normed;
  const T *x, *weight, *d_y;
  const float* rstd;
  T* d_x;
  float offset;

  BackwardInput(Context& context, const HeadNormBackwardInput& a)
      : Base(a.shape, a.x),
        x(context.data<T>(a.x)),
        weight(optional<T>(context, a.weight)),
        d_y(context.data<T>(a.d_y)),
        rstd(context.data<float>(a.rstd)),
        d_x(context.data<T>(a.d_x)),
        offset(a.offset) {}

  PRIMUS_DEVICE void operator()() const {
    this->each([&](std::int64_t row, std::int64_t head) {
      if (head == normed) return this->copy_rest(d_y, d_x, row);
      const std::int64_t at = row * width + head * dim;
      const float scale = rstd[row * normed + head];
      const auto fetch = [&](std::int64_t i, float(&g)[kCount], float(&v)[kCount]) {
        load<kCount>(d_y + at + i, g);
        load<kCount>(x + at + i, v);
        this->weigh(g, weight, offset, head, i);
      };
      float dot = 0, g[kCount], v[kCount];
      for (std::int64_t i = lane() * kCount; i < dim; i += kWarp * kCount) {
        fetch(i, g, v);
        PRIMUS_UNROLL
        for (int k = 0; k < kCount; ++k) dot = multiply_add(g[k], v[k], dot);
      }
      dot = warp_reduce(dot);
      const NormGradient gradient(dot, scale, dim);
      for (std::int64_t i = lane() * kCount; i < dim; i += kWarp * kCount) {
        fetch(i, g, v);
        PRIMUS_UNROLL
        for (int k = 0; k < kCount; ++k) g[k] = gradient(g[k], v[k]);
        store<kCount>(d_x + at + i, g);
      }
    });
  }
};

void backward_input(Context& context, const HeadNormBackwardInput& a) {
  launch_heads<BackwardInput>(context, a, a.x, a.weight, a.d_y, a.d_x);
}

template <class T, int kColumns>
struct WeightTerm {
  static constexpr int kCount = kColumns;
  const T *x, *d_y;
  const float* rstd;
  std::int64_t width, heads, normed, dim;

  // Assigns the contributions of a row to the gradient. The first head_dim columns are query weights, the
  // next head_dim columns key weights.
  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t i, float (&value)[kCount]) const {
    const std::int64_t begin = i < dim ? 0 : heads, end = i < dim ? heads : normed,
                       column = i < dim ? i : i - dim;
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) value[k] = 0;
    PRIMUS_UNROLL_BY(4)
    for (std::int64_t head = begin; head < end; ++head) {
      const std::int64_t at = row * width + head * dim + column;
      const float scale = rstd[row * normed + head];
      float g[kCount], v[kCount];
      load<kCount>(d_y + at, g);
      load<kCount>(x + at, v);
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) value[k] += norm_weight_term(g[k], v[k], scale);
    }
  }
};

std::int64_t backward_weight_workspace(Context&, const HeadNormBackwardWeight& a) {
  return row_sum_workspace(a.x.rows(), 2 * a.shape.head_dim);
}

void backward_weight(Context& context, const HeadNormBackwardWeight& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T *x = context.data<T>(a.x), *d_y = context.data<T>(a.d_y);
    const auto run = [&](auto columns) {
      row_sum(context, a.x.rows(), 2 * a.shape.head_dim, context.data<float>(a.workspace), a.d_weight,
              a.accumulate,
              WeightTerm<T, columns>{x, d_y, context.data<float>(a.rstd), a.x.cols(), a.shape.heads,
                                     a.shape.normed(), a.shape.head_dim});
    };
    constexpr std::int64_t kTwo = 2;
    const auto aligned = [](const T* at) {
      return reinterpret_cast<std::uintptr_t>(at) % (kTwo * sizeof(T)) == 0;
    };
    if (a.shape.head_dim % kTwo == 0 && a.x.cols() % kTwo == 0 && aligned(x) && aligned(d_y)) {
      run(std::integral_constant<int, kTwo>{});
    } else {
      run(std::integral_constant<int, 1>{});
    }
  });
}

}  // namespace

void register_head_norm(KernelTable& table) {
  table.add<HeadNormForward, Context, &forward>();
  table.add<HeadNormBackwardInput, Context, &backward_input>();
  table.add<HeadNormBackwardWeight, Context, &backward_weight, &backward_weight_workspace>();
}

}  // namespace primus::turbo::PRIMUS_GPU
