// A warp works on one head of one token.
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/head_norm/head_norm.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// What kernels of all heads have in common. Columns behind the normed heads are one more "head" of a row.
template <class T>
struct Heads {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / kWarp;
  std::int64_t rows, width, heads, normed, dim;

  Heads(const HeadNormShape& s, const Tensor& x)
      : rows(x.rows()), width(x.cols()), heads(s.heads), normed(s.normed()), dim(s.head_dim) {}

  // body(row, head) for the head of this warp.
  template <class Body>
  PRIMUS_DEVICE void each(Body body) const {
    const std::int64_t item = block() * kWarps + warp();
    if (item < rows * (normed + 1)) body(item / (normed + 1), item % (normed + 1));
  }
  PRIMUS_DEVICE void copy_rest(const T* from, T* to, std::int64_t row) const {
    if (from == to) return;
    for (std::int64_t i = normed * dim + lane(); i < width; i += kWarp)
      to[row * width + i] = from[row * width + i];
  }
  // Element i of head's weights.
  PRIMUS_DEVICE float weight_at(const T* weight, float offset, std::int64_t head, std::int64_t i) const {
    return weight ? to_float(weight[(head < heads ? 0 : dim) + i]) + offset : 1.0F;
  }
};

template <class T>
struct Forward : Heads<T> {
  using Heads<T>::dim, Heads<T>::width, Heads<T>::normed;
  const T *x, *weight;
  T* y;
  float* rstd;
  float eps, offset;

  Forward(Context& context, const HeadNormForward& a)
      : Heads<T>(a.shape, a.x),
        x(context.data<T>(a.x)),
        weight(optional<T>(context, a.weight)),
        y(context.data<T>(a.y)),
        rstd(context.data<float>(a.rstd)),
        eps(a.eps),
        offset(a.offset) {}

  PRIMUS_DEVICE void operator()() const {
    this->each([&](std::int64_t row, std::int64_t head) {
      if (head == normed) return this->copy_rest(x, y, row);
      const T* from = x + row * width + head * dim;
      T* to = y + row * width + head * dim;
      float squares = 0;
      for (std::int64_t i = lane(); i < dim; i += kWarp) {
        const float v = to_float(from[i]);
        squares = multiply_add(v, v, squares);
      }
      squares = warp_reduce(squares);
      const float scale = 1.0F / ::sqrtf(squares / static_cast<float>(dim) + eps);
      if (lane() == 0) rstd[row * normed + head] = scale;
      for (std::int64_t i = lane(); i < dim; i += kWarp) {
        to[i] = from_float<T>(to_float(from[i]) * scale * this->weight_at(weight, offset, head, i));
      }
    });
  }
};

template <class T>
std::int64_t blocks_of(const Heads<T>& heads) {
  return blocks_for(heads.rows * (heads.normed + 1), Heads<T>::kWarps);
}

void forward(Context& context, const HeadNormForward& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    const Forward<decltype(tag)> kernel(context, a);
    launch(context, blocks_of(kernel), kernel);
  });
}

// With g = d_y * weight:  d_x = rstd * (g - x * rstd² * mean(g * x)).
template <class T>
struct BackwardInput : Heads<T> {
  using Heads<T>::dim, Heads<T>::width, Heads<T>::normed;
  const T *x, *weight, *d_y;
  const float* rstd;
  T* d_x;
  float offset;

  BackwardInput(Context& context, const HeadNormBackwardInput& a)
      : Heads<T>(a.shape, a.x),
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
      float dot = 0;
      for (std::int64_t i = lane(); i < dim; i += kWarp) {
        dot = multiply_add(to_float(d_y[at + i]) * this->weight_at(weight, offset, head, i),
                           to_float(x[at + i]), dot);
      }
      dot = warp_reduce(dot);
      const float along = dot * scale * scale * scale / static_cast<float>(dim);
      for (std::int64_t i = lane(); i < dim; i += kWarp) {
        const float g = to_float(d_y[at + i]) * this->weight_at(weight, offset, head, i);
        d_x[at + i] = from_float<T>(g * scale - to_float(x[at + i]) * along);
      }
    });
  }
};

void backward_input(Context& context, const HeadNormBackwardInput& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    const BackwardInput<decltype(tag)> kernel(context, a);
    launch(context, blocks_of(kernel), kernel);
  });
}

template <class T>
struct WeightTerm {
  static constexpr int kCount = 1;
  const T *x, *d_y;
  const float* rstd;
  std::int64_t width, heads, normed, dim;

  // Column i is of the queries' weights, then of the keys'.
  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t i, float (&value)[kCount]) const {
    const std::int64_t begin = i < dim ? 0 : heads, end = i < dim ? heads : normed;
    float sum = 0;
    for (std::int64_t head = begin; head < end; ++head) {
      const std::int64_t at = row * width + head * dim + i % dim;
      sum += to_float(d_y[at]) * (to_float(x[at]) * rstd[row * normed + head]);
    }
    value[0] = sum;
  }
};

std::int64_t backward_weight_workspace(Context&, const HeadNormBackwardWeight& a) {
  return row_sum_workspace(a.x.rows(), 2 * a.shape.head_dim);
}

void backward_weight(Context& context, const HeadNormBackwardWeight& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    row_sum(context, a.x.rows(), 2 * a.shape.head_dim, context.data<float>(a.workspace), a.d_weight,
            a.accumulate,
            WeightTerm<T>{context.data<T>(a.x), context.data<T>(a.d_y), context.data<float>(a.rstd),
                          a.x.cols(), a.shape.heads, a.shape.normed(), a.shape.head_dim});
  });
}

}  // namespace

void register_head_norm(KernelTable& table) {
  table.add<HeadNormForward, Context, &forward>();
  table.add<HeadNormBackwardInput, Context, &backward_input>();
  table.add<HeadNormBackwardWeight, Context, &backward_weight, &backward_weight_workspace>();
}

}  // namespace primus::turbo::PRIMUS_GPU
