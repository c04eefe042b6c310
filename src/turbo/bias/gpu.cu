#include "turbo/bias/bias.h"
#include "turbo/gpu/loops.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

template <class T, int kCount>
struct AddBiasBody {
  const T *x, *bias;
  T* y;
  std::int64_t n;
  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t i) const {
    float v[kCount], b[kCount];
    load<kCount>(x + row * n + i, v);
    load<kCount>(bias + i, b);
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) v[k] += b[k];
    store<kCount>(y + row * n + i, v);
  }
};

void add_bias(Context& context, const AddBias& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T *x = context.data<T>(a.x), *bias = context.data<T>(a.bias);
    T* y = context.data<T>(a.y);
    with_vector<T>(rows_of_vectors<T>(a.x.cols(), x, bias, y), [&](auto count) {
      for_each_of_rows<count>(context, a.x.rows(), a.x.cols(), AddBiasBody<T, count>{x, bias, y, a.x.cols()});
    });
  });
}

template <class T, int kNeighbours>
struct ColumnTerm {
  static constexpr int kCount = kNeighbours;
  const T* x;
  std::int64_t n;
  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t i, float (&value)[kCount]) const {
    load<kCount>(x + row * n + i, value);
  }
};

std::int64_t backward_weight_workspace(Context&, const AddBiasBackwardWeight& a) {
  return row_sum_workspace(a.d_y.rows(), a.d_y.cols());
}

void backward_weight(Context& context, const AddBiasBackwardWeight& a) {
  with_float_type(a.d_y.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T* d_y = context.data<T>(a.d_y);
    with_vector<T>(rows_of_vectors<T>(a.d_y.cols(), d_y), [&](auto count) {
      row_sum(context, a.d_y.rows(), a.d_y.cols(), context.data<float>(a.workspace), a.d_bias, a.accumulate,
              ColumnTerm<T, count>{d_y, a.d_y.cols()});
    });
  });
}

}  // namespace

void register_bias(KernelTable& table) {
  table.add<AddBias, Context, &add_bias>();
  table.add<AddBiasBackwardWeight, Context, &backward_weight, &backward_weight_workspace>();
}

}  // namespace primus::turbo::PRIMUS_GPU
