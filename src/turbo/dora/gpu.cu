#include "turbo/dora/dora.h"
#include "turbo/dora/formula.h"
#include "turbo/gpu/loops.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// A block computes the square of the norm of a row. A stays in the cache, because all blocks read it.
template <class T, int kCount>
struct NormBody {
  static constexpr int kThreads = 256;
  const T *w, *down, *up;
  float* square;
  std::int64_t in, rank;
  float scale;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t row = block();
    float squares = 0;
    for (std::int64_t i = thread() * kCount; i < in; i += kThreads * kCount) {
      float sum[kCount] = {};
      for (std::int64_t r = 0; r < rank; ++r) {
        const float factor = to_float(up[row * rank + r]);
        float a[kCount];
        load<kCount>(down + r * in + i, a);
        PRIMUS_UNROLL
        for (int k = 0; k < kCount; ++k) sum[k] = multiply_add(factor, a[k], sum[k]);
      }
      float v[kCount];
      load<kCount>(w + row * in + i, v);
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) {
        v[k] = multiply_add(scale, sum[k], v[k]);
        squares = multiply_add(v[k], v[k], squares);
      }
    }
    squares = block_reduce<kThreads>(squares);
    if (thread() == 0) square[row] = squares;
  }
};

void norm(Context& context, const DoraNorm& a) {
  with_float_type(a.w.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T *w = context.data<T>(a.w), *down = context.data<T>(a.down), *up = context.data<T>(a.up);
    with_vector<T>(rows_of_vectors<T>(a.w.cols(), w, down), [&](auto count) {
      launch(
          context, a.w.rows(),
          NormBody<T, count>{w, down, up, context.data<float>(a.square), a.w.cols(), a.down.rows(), a.scale});
    });
  });
}

template <class T>
struct ScaleBody {
  const T *x, *magnitude;
  const float* square;
  T* y;
  std::int64_t cols, first, n;
  PRIMUS_DEVICE void operator()(std::int64_t at) const {
    const std::int64_t i = at % cols - first;
    y[at] = i < 0 || i >= n ? x[at]
                            : from_float<T>(to_magnitude(to_float(x[at]), to_float(magnitude[i]), square[i]));
  }
};

void scale(Context& context, const DoraScale& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    for_each(context, a.x.elements(),
             ScaleBody<T>{context.data<T>(a.x), context.data<T>(a.magnitude), context.data<float>(a.square),
                          context.data<T>(a.y), a.x.cols(), a.first, a.square.elements()});
  });
}

template <class T>
struct MagnitudeTerm {
  static constexpr int kCount = 1;
  const T *x, *d_y;
  const float* square;
  std::int64_t cols;
  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t i, float (&value)[kCount]) const {
    const std::int64_t at = row * cols + i;
    value[0] = magnitude_term(to_float(x[at]), to_float(d_y[at]), square[i]);
  }
};

std::int64_t backward_workspace(Context&, const DoraBackwardMagnitude& a) {
  return row_sum_workspace(a.x.rows(), a.square.elements());
}

void backward(Context& context, const DoraBackwardMagnitude& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    row_sum(context, a.x.rows(), a.square.elements(), context.data<float>(a.workspace), a.d_magnitude,
            a.accumulate,
            MagnitudeTerm<T>{context.data<T>(a.x) + a.first, context.data<T>(a.d_y) + a.first,
                             context.data<float>(a.square), a.x.cols()});
  });
}

}  // namespace

void register_dora(KernelTable& table) {
  table.add<DoraNorm, Context, &norm>();
  table.add<DoraScale, Context, &scale>();
  table.add<DoraBackwardMagnitude, Context, &backward, &backward_workspace>();
}

}  // namespace primus::turbo::PRIMUS_GPU
