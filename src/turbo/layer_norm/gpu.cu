// A warp processes one row.
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/layer_norm/formula.h"
#include "turbo/layer_norm/layer_norm.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

template <class T>
struct Rows {
  static constexpr int kThreads = 256, kWarps = kThreads / kWarp;
  const T *x, *weight;
  const float* bias;
  T* y;
  std::int64_t rows, n;
  float eps;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t row = block() * kWarps + warp();
    if (row >= rows) return;
    const T* const from = x + row * n;
    float sum = 0, squares = 0;
    for (std::int64_t i = lane(); i < n; i += kWarp) sum += to_float(from[i]);
    const float mean = warp_reduce(sum) / static_cast<float>(n);
    for (std::int64_t i = lane(); i < n; i += kWarp) {
      const float from_mean = to_float(from[i]) - mean;
      squares = multiply_add(from_mean, from_mean, squares);
    }
    const LayerNormRow normal{mean, inverse_rms(warp_reduce(squares), n, eps)};
    for (std::int64_t i = lane(); i < n; i += kWarp)
      y[row * n + i] = from_float<T>(normal(to_float(from[i]), to_float(weight[i]), bias[i]));
  }
};

void layer_norm(Context& context, const LayerNorm& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    launch(context, blocks_for(a.x.rows(), Rows<T>::kWarps),
           Rows<T>{context.data<T>(a.x), context.data<T>(a.weight), context.data<float>(a.bias),
                   context.data<T>(a.y), a.x.rows(), a.x.cols(), a.eps});
  });
}

}  // namespace

void register_layer_norm(KernelTable& table) { table.add<LayerNorm, Context, &layer_norm>(); }

}  // namespace primus::turbo::PRIMUS_GPU
