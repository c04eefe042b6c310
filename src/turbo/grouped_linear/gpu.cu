#include "turbo/gpu/gemm_tile.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/grouped_linear/grouped_linear.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// ---- Products -----------------------------------------------------------------------------------

// Rows that belong to nobody.
template <class T>
struct ClearRest {
  const std::int32_t* offsets;
  T* c;
  std::int64_t experts, n;
  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t i) const {
    if (row >= offsets[experts]) c[row * n + i] = from_float<T>(0.0F);
  }
};

// Every expert gets as many blocks as if all rows were its own; those beyond its rows end at once. That keeps
// the host out of it, and costs microseconds.
template <class T, class C>
void multiply_groups(Context& context, const GroupedGemm& call) {
  const bool weights = call.role == GemmRole::kWeightGradient;
  const Tensor& of_experts = weights ? call.c : call.b;
  const std::int64_t out = of_experts.shape[1], in = of_experts.shape[2];
  TileProduct<T, T, C> p{};
  p.a = context.data<T>(call.a);
  p.b = context.data<T>(call.b);
  p.c = context.data<C>(call.c);
  p.offsets = context.data<std::int32_t>(call.offsets);
  p.a_picks = optional<std::int32_t>(context, call.a_rows);
  p.b_picks = optional<std::int32_t>(context, call.b_rows);
  p.batches = of_experts.shape[0];
  p.accumulate = call.accumulate;
  p.sum_rows = weights;
  if (weights) {
    p.m = out, p.n = in, p.k = call.rows();
    p.a_row = 1, p.a_col = out;
    p.b_row = 1, p.b_col = in;
    p.c_row = in, p.c_batch = out * in;
    return run_product(context, p);
  }
  const bool forward = call.role == GemmRole::kForward;
  p.m = call.rows(), p.n = forward ? out : in, p.k = forward ? in : out;
  p.a_row = p.k, p.a_col = 1;
  p.b_row = forward ? in : 1, p.b_col = forward ? 1 : in;
  p.b_batch = out * in;
  p.c_row = p.n;
  run_product(context, p);
  for_each_of_rows<1>(context, call.c.rows(), p.n, ClearRest<C>{p.offsets, p.c, p.batches, p.n});
}

void grouped_gemm(Context& context, const GroupedGemm& call) {
  with_float_type(call.a.dtype, [&](auto tag) {
    with_float_type(call.c.dtype,
                    [&](auto to) { multiply_groups<decltype(tag), decltype(to)>(context, call); });
  });
}

// ---- Biases -------------------------------------------------------------------------------------

template <class T>
struct AddGroupBias {
  static constexpr int kThreads = 256;
  const T *x, *bias;
  T* y;
  const std::int32_t* offsets;
  std::int64_t experts, n;

  // A block for every row.
  PRIMUS_DEVICE void operator()() const {
    const std::int64_t row = block();
    // The number of experts that end at or before this row.
    std::int64_t low = 0, high = experts;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (offsets[middle + 1] <= row) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    for (std::int64_t i = thread(); i < n; i += kThreads) {
      const T value = x[row * n + i];
      y[row * n + i] = low < experts ? from_float<T>(to_float(value) + to_float(bias[low * n + i])) : value;
    }
  }
};

void bias(Context& context, const GroupedBias& a) {
  with_float_type(a.y.dtype, [&](auto tag) {
    using T = decltype(tag);
    launch(context, a.y.rows(),
           AddGroupBias<T>{context.data<T>(a.x), context.data<T>(a.bias), context.data<T>(a.y),
                           context.data<std::int32_t>(a.offsets), a.bias.rows(), a.y.cols()});
  });
}

// Every element is summed by one thread, in row order.
template <class T>
struct GroupBiasGradient {
  const T* d_y;
  float* d_bias;
  const std::int32_t* offsets;
  std::int64_t n;
  bool accumulate;
  PRIMUS_DEVICE void operator()(std::int64_t expert, std::int64_t i) const {
    float sum = accumulate ? d_bias[expert * n + i] : 0.0F;
    for (std::int64_t row = offsets[expert]; row < offsets[expert + 1]; ++row)
      sum += to_float(d_y[row * n + i]);
    d_bias[expert * n + i] = sum;
  }
};

void bias_backward(Context& context, const GroupedBiasBackward& a) {
  with_float_type(a.d_y.dtype, [&](auto tag) {
    using T = decltype(tag);
    for_each_of_rows<1>(
        context, a.d_bias.rows(), a.d_y.cols(),
        GroupBiasGradient<T>{context.data<T>(a.d_y), context.data<float>(a.d_bias),
                             context.data<std::int32_t>(a.offsets), a.d_y.cols(), a.accumulate});
  });
}

}  // namespace

void register_grouped_linear(KernelTable& table) {
  table.add<GroupedGemm, Context, &grouped_gemm>();
  table.add<GroupedBias, Context, &bias>();
  table.add<GroupedBiasBackward, Context, &bias_backward>();
}

}  // namespace primus::turbo::PRIMUS_GPU
