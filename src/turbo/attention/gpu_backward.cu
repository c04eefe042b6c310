// The backward pass of attention. The first choice is a vendor library that supports the call (gpu_cudnn.h).
// The second choice is our kernel with warpgroup instructions (gpu_warpgroups_backward.h). The kernels for
// any GPU (gpu_tiles_backward.h) compute all other calls.
#include "turbo/attention/gpu_attention.h"
#include "turbo/attention/gpu_cudnn.h"
#include "turbo/attention/gpu_tiles_backward.h"
#include "turbo/attention/gpu_warpgroups_backward.h"
#include "turbo/gpu/reduce.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// Returns the workspace bytes of our own kernels, which store delta in the workspace.
std::int64_t own_workspace(const AttentionBackward& a) {
  return a.shape.heads * a.shape.batch * a.shape.seq_q * static_cast<std::int64_t>(sizeof(float));
}

template <class Gradient, int kHeadDim>
void gradients_by_warpgroups(Context& context, const AttentionBackward& a, const float* delta,
                             const std::int32_t* unless_zero) {
  const AttentionShape& s = a.shape;
  const std::int64_t q_width = s.heads * kHeadDim, kv_width = s.kv_heads * kHeadDim;
  const auto map = [&](const Tensor& x, std::int64_t cols, std::int64_t rows, std::int64_t capacity,
                       std::int64_t stride) {
    return box_map(
        {context.data<BFloat16>(x), {cols, rows, s.batch}, {stride, capacity * stride}, kPanelLine});
  };
  const auto count = [](std::int64_t n) { return static_cast<int>(n); };
  const auto run = [&]<bool kOfKeys>() {
    using Kernel = BackwardWarpgroups<Gradient, kHeadDim, kOfKeys>;
    const std::int64_t tiles = blocks_for(kOfKeys ? s.seq_k : s.seq_q, Kernel::kRows);
    launch(context, tiles * s.batch * (kOfKeys ? s.kv_heads : s.heads),
           Kernel{.visibility = Visibility(s, optional<std::int32_t>(context, a.first_key)),
                  .q = map(a.q, q_width, s.seq_q, s.seq_q, a.q_stride),
                  .k = map(a.k, kv_width, s.seq_k, s.capacity_k, a.k_stride),
                  .v = map(a.v, kv_width, s.seq_k, s.capacity_k, a.v_stride),
                  .d_out = map(a.d_out, q_width, s.seq_q, s.seq_q, q_width),
                  .lse = context.data<float>(a.lse),
                  .delta = delta,
                  .d_first = context.data<Gradient>(kOfKeys ? a.d_k : a.d_q),
                  .d_second = kOfKeys ? context.data<Gradient>(a.d_v) : nullptr,
                  .d_first_stride = kOfKeys ? a.d_k_stride : a.d_q_stride,
                  .d_second_stride = a.d_v_stride,
                  .batch = count(s.batch),
                  .heads = count(s.heads),
                  .group = count(s.heads / s.kv_heads),
                  .tiles = count(tiles),
                  .kept_capacity = kOfKeys ? s.capacity_k : s.seq_q,
                  .scale = s.scale,
                  .accumulate = kOfKeys ? a.accumulate_d_kv : a.accumulate_d_q,
                  .unless_zero = unless_zero},
           Kernel::kSharedBytes);
  };
  run.template operator()<true>();
  run.template operator()<false>();
}

// Returns false if the kernel does not support the call. The kernel needs a GPU with warpgroups, heads of 64
// or 128 columns, rows that begin at multiples of 16 bytes, and scores without a soft cap.
template <class Gradient>
bool backward_by_warpgroups(Context& context, const AttentionBackward& a, const float* delta,
                            const std::int32_t* unless_zero) {
  const AttentionShape& s = a.shape;
  if (!whole_lines(context, {&a.q, &a.k, &a.v, &a.d_out, &a.d_q, &a.d_k, &a.d_v},
                   {a.q_stride, a.k_stride, a.v_stride, a.d_q_stride, a.d_k_stride, a.d_v_stride}) ||
      s.score_cap > 0 || s.batch == 0 || s.seq_q == 0 || s.seq_k == 0 || s.head_dim != s.value_dim) {
    return false;
  }
  if (s.head_dim == 64) {
    gradients_by_warpgroups<Gradient, 64>(context, a, delta, unless_zero);
  } else if (s.head_dim == 128) {
    gradients_by_warpgroups<Gradient, 128>(context, a, delta, unless_zero);
  } else {
    return false;
  }
  return true;
}

template <class T, class Gradient>
void gradients(Context& context, const AttentionBackward& a, const BackwardTiles<T>& both) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (backward_by_warpgroups<Gradient>(context, a, both.delta, both.unless_zero)) return;
  }
  using Tiles = AttentionTiles<T>;
  using Keys = BackwardKeys<T, Gradient>;
  const AttentionShape& s = a.shape;
  const std::int64_t key_panels = blocks_for(s.head_dim, Tiles::kWide);
  const std::int64_t value_panels = blocks_for(s.value_dim, Tiles::kWide), panels = key_panels + value_panels;
  launch(context, blocks_for(s.seq_k, Tiles::kRows) * s.batch * s.kv_heads * panels,
         Keys{both, context.data<Gradient>(a.d_k), context.data<Gradient>(a.d_v), a.d_k_stride, a.d_v_stride,
              s.kv_heads, value_panels, panels, a.accumulate_d_kv},
         sizeof(typename Keys::Memory));
  const std::int64_t tiles = blocks_for(s.seq_q, Tiles::kRows);
  launch(context, tiles * s.batch * s.heads * key_panels,
         BackwardQueries<T, Gradient>{both, context.data<Gradient>(a.d_q), a.d_q_stride, tiles, key_panels,
                                      a.accumulate_d_q},
         sizeof(typename Tiles::Memory));
}

// parts[slice][head] = the sum over a slice of consecutive tokens. A block processes a slice of one head, and
// its warps divide the tokens among themselves. The slices depend only on the number of tokens.
template <class T>
struct SinkParts {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / kWarp;
  const T *sinks, *out, *d_out;
  const float* lse;
  double* parts;
  std::int64_t tokens, heads, value_dim, slice_tokens;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t head = block() % heads, begin = block() / heads * slice_tokens;
    const std::int64_t end = smaller(begin + slice_tokens, tokens);
    const float sink = to_float(sinks[head]);
    double sum = 0;
    for (std::int64_t token = begin + warp(); token < end; token += kWarps) {
      const std::int64_t at = (token * heads + head) * value_dim;
      float part = 0;
      for (std::int64_t i = lane(); i < value_dim; i += kWarp) {
        part = multiply_add(to_float(out[at + i]), to_float(d_out[at + i]), part);
      }
      part = warp_reduce(part);
      if (lane() == 0) sum -= static_cast<double>(::expf(sink - lse[head * tokens + token]) * part);
    }
    sum = block_reduce<kThreads>(sum);
    if (thread() == 0) parts[block()] = sum;
  }
};

// d_sinks[head] (+)= the sum of the head's parts. A warp processes a head.
struct SinkSums {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / kWarp;
  const double* parts;
  float* d_sinks;
  std::int64_t heads, slices;
  bool accumulate;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t head = block() * kWarps + warp();
    if (head >= heads) return;
    double sum = 0;
    for (std::int64_t slice = lane(); slice < slices; slice += kWarp) sum += parts[slice * heads + head];
    sum = warp_reduce(sum);
    if (lane() == 0)
      d_sinks[head] = static_cast<float>(accumulate ? static_cast<double>(d_sinks[head]) + sum : sum);
  }
};

}  // namespace

std::int64_t attention_backward_workspace(Context& context, const AttentionBackward& a) {
  return attention_library_workspace(context, a, own_workspace(a));
}

void attention_backward(Context& context, const AttentionBackward& a) {
  const LeftToDo left = attention_by_library(context, a, own_workspace(a));
  if (!left.all && !left.unless_zero) return;
  with_operand_type(a.q.dtype, [&](auto tag) {
    using T = decltype(tag);
    const AttentionShape& s = a.shape;
    auto* delta = context.data<float>(a.workspace);
    const std::int64_t tokens = s.batch * s.seq_q;
    launch(context, blocks_for(tokens * s.heads, Deltas<T>::kWarps),
           Deltas<T>{context.data<T>(a.out), context.data<T>(a.d_out), delta, tokens, s.heads, s.value_dim,
                     left.unless_zero});
    auto both = on_tiles<BackwardTiles, T>(context, a, s, optional<std::int32_t>(context, a.first_key),
                                           left.unless_zero);
    both.d_out = context.data<T>(a.d_out);
    both.lse = context.data<float>(a.lse);
    both.delta = delta;
    if constexpr (!std::is_same_v<T, Float16>) {
      if (a.d_q.dtype != a.q.dtype) return gradients<T, float>(context, a, both);
    }
    gradients<T, T>(context, a, both);
  });
}

void attention_backward_sinks(Context& context, const AttentionBackwardSinks& a) {
  with_float_type(a.out.dtype, [&](auto tag) {
    using T = decltype(tag);
    constexpr std::int64_t kMaxSlices = 64, kFewestTokens = 64;
    const std::int64_t tokens = a.out.rows();
    const std::int64_t slice_tokens = std::max(blocks_for(tokens, kMaxSlices), kFewestTokens);
    const std::int64_t slices = blocks_for(tokens, slice_tokens);
    auto* const parts = partials<double>(context, std::max<std::int64_t>(slices * a.heads, 1));
    launch(context, slices * a.heads,
           SinkParts<T>{context.data<T>(a.sinks), context.data<T>(a.out), context.data<T>(a.d_out),
                        context.data<float>(a.lse), parts, tokens, a.heads, a.value_dim, slice_tokens});
    launch(context, blocks_for(a.heads, SinkSums::kWarps),
           SinkSums{parts, context.data<float>(a.d_sinks), a.heads, slices, a.accumulate});
  });
}

}  // namespace primus::turbo::PRIMUS_GPU
