// Flash attention for all supported shapes, on any GPU: the forward pass, and the merge of results over key
// ranges. If a vendor library is available (gpu_cudnn.h), it computes the calls that it supports, and our own
// kernels compute all other calls.
#include "turbo/attention/attention.h"
#include "turbo/attention/gpu_attention.h"
#include "turbo/attention/gpu_cudnn.h"
#include "turbo/attention/gpu_paged.h"
#include "turbo/attention/gpu_tiles_forward.h"
#include "turbo/attention/gpu_warpgroups.h"
#include "turbo/gpu/register.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// Returns whether rows are in bf16 without a soft cap, as kernels on warpgroups need them.
bool fits_warpgroups(Context& context, const AttentionForward& a) {
  return a.q.dtype == DType::kBF16 && a.shape.score_cap == 0 &&
         whole_lines(context, {&a.q, &a.k, &a.v, &a.out}, {a.q_stride, a.k_stride, a.v_stride});
}

// On a batch-invariant device, throws if no kernel has the order of additions of paged_in_order().
void check_order(Context& context, const AttentionForward& a) {
  const AttentionShape& s = a.shape;
  if (fits_warpgroups(context, a) && s.causal && s.head_dim == s.value_dim && has_order(s.head_dim)) return;
  refuse_order(s.head_dim, s.value_dim, a.q.dtype);
}

std::int64_t forward_workspace(Context& context, const AttentionForward& a) {
  if (context.batch_invariant()) {
    check_order(context, a);
    return 0;
  }
  return attention_library_workspace(context, a, 0);
}

template <int kHeadDim, int kValueDim, bool kByDocument = false>
void attend_by_warpgroups(Context& context, const AttentionForward& a, const std::int32_t* unless_zero) {
  using Kernel = ForwardWarpgroups<kHeadDim, kValueDim, kByDocument>;
  const AttentionShape& s = a.shape;
  const auto map = [&](const Tensor& x, std::int64_t cols, std::int64_t rows, std::int64_t capacity,
                       std::int64_t stride, int lines) {
    return box_map({context.data<BFloat16>(x), {cols, rows, s.batch}, {stride, capacity * stride}, lines});
  };
  const auto count = [](std::int64_t n) { return static_cast<int>(n); };
  const std::int64_t tiles = blocks_for(s.seq_q, Kernel::kRows);
  launch(context, tiles * s.batch * s.heads,
         Kernel{.visibility = Visibility(s, optional<std::int32_t>(context, a.first_key)),
                .queries = map(a.q, s.heads * kHeadDim, s.seq_q, s.seq_q, a.q_stride, Kernel::kRows),
                .keys = map(a.k, s.kv_heads * kHeadDim, s.seq_k, s.capacity_k, a.k_stride, Kernel::kKeys),
                .values = map(a.v, s.kv_heads * kValueDim, s.seq_k, s.capacity_k, a.v_stride, kPanelLine),
                .sinks = optional<BFloat16>(context, a.sinks),
                .out = context.data<BFloat16>(a.out),
                .lse = optional<float>(context, a.lse),
                .batch = count(s.batch),
                .heads = count(s.heads),
                .group = count(s.heads / s.kv_heads),
                .tiles = count(tiles),
                .scale = s.scale,
                .unless_zero = unless_zero},
         Kernel::kSharedBytes);
}

bool forward_by_warpgroups(Context& context, const AttentionForward& a, const std::int32_t* unless_zero) {
  const AttentionShape& s = a.shape;
  // The TMA does not support tensors without elements.
  if (s.batch == 0 || s.seq_q == 0 || s.seq_k == 0 || !fits_warpgroups(context, a)) return false;
  if (s.head_dim == 64 && s.value_dim == 64) {
    attend_by_warpgroups<64, 64>(context, a, unless_zero);
  } else if (s.head_dim == 128 && s.value_dim == 128) {
    attend_by_warpgroups<128, 128>(context, a, unless_zero);
  } else if (s.head_dim == 192 && s.value_dim == 128) {
    attend_by_warpgroups<192, 128>(context, a, unless_zero);
  } else {
    return false;
  }
  return true;
}

// Tiles of keys begin at the first key of each document, as in paged_in_order().
void forward_in_order(Context& context, const AttentionForward& a) {
  check_order(context, a);
#ifdef PRIMUS_GPU_VENDOR
  context.shared().count("attention with one order of additions: own kernel");
#endif
  if (a.shape.batch == 0 || a.shape.seq_q == 0 || a.shape.seq_k == 0) return;
  if (a.shape.head_dim == 64) return attend_by_warpgroups<64, 64, true>(context, a, nullptr);
  attend_by_warpgroups<128, 128, true>(context, a, nullptr);
}

void forward(Context& context, const AttentionForward& a) {
  if (context.batch_invariant()) return forward_in_order(context, a);
  const LeftToDo left = attention_by_library(context, a, 0);
  if (!left.all && !left.unless_zero) return;
  if (forward_by_warpgroups(context, a, left.unless_zero)) return;
  with_operand_type(a.q.dtype, [&](auto tag) {
    using T = decltype(tag);
    using Tiles = AttentionTiles<T>;
    const AttentionShape& s = a.shape;
    auto kernel = on_tiles<ForwardTiles, T>(context, a, s, optional<std::int32_t>(context, a.first_key),
                                            left.unless_zero);
    kernel.sinks = optional<T>(context, a.sinks);
    kernel.out = context.data<T>(a.out);
    kernel.lse = optional<float>(context, a.lse);
    kernel.tiles = blocks_for(s.seq_q, Tiles::kRows);
    kernel.panels = blocks_for(s.value_dim, Tiles::kWide);
    launch(context, kernel.tiles * s.batch * s.heads * kernel.panels, kernel, sizeof(typename Tiles::Memory));
  });
}

// ---- Parts of the keys --------------------------------------------------------------------------

// A group of kLanes lanes processes a token and head; each lane processes kCount consecutive values.
template <class T, class Part, int kCount>
struct Merge {
  static constexpr int kThreads = 256, kLanes = 16;
  static constexpr int kGroups = kThreads / kLanes;
  T* out;
  float* lse;
  const Part* part;
  const float* part_lse;
  std::int64_t tokens, heads, value_dim;
  bool accumulate;

  PRIMUS_DEVICE void operator()() const {
    const int group = thread() / kLanes, lane_of_group = thread() % kLanes;
    const std::int64_t item = block() * kGroups + group;
    const bool there = item < tokens * heads;
    const std::int64_t statistic = there ? item % heads * tokens + item / heads : 0;
    const float mine = accumulate ? lse[statistic] : -infinity(), other = part_lse[statistic];
    const float maximum = ::fmaxf(mine, other);
    float a = 0, b = 1, merged = other;
    if (accumulate && maximum != -infinity()) {
      const float weight_a = ::expf(mine - maximum), weight_b = ::expf(other - maximum);
      a = weight_a / (weight_a + weight_b);
      b = weight_b / (weight_a + weight_b);
      merged = maximum + ::logf(weight_a + weight_b);
    }
    warp_barrier();  // all lanes have read the sum
    if (!there) return;
    if (lane_of_group == 0) lse[statistic] = merged;
    for (std::int64_t i = lane_of_group * kCount; i < value_dim; i += kLanes * kCount) {
      float x[kCount], y[kCount] = {};
      load<kCount>(part + item * value_dim + i, x);
      if (accumulate) load<kCount>(out + item * value_dim + i, y);
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) x[k] = accumulate ? multiply_add(a, y[k], b * x[k]) : b * x[k];
      store<kCount>(out + item * value_dim + i, x);
    }
  }
};

void merge(Context& context, const AttentionMerge& a) {
  with_float_type(a.out.dtype, [&](auto out_tag) {
    with_float_type(a.part.dtype, [&](auto part_tag) {
      using T = decltype(out_tag);
      using Part = decltype(part_tag);
      const std::int64_t tokens = a.out.rows();
      T* const out = context.data<T>(a.out);
      const Part* const part = context.data<Part>(a.part);
      using Narrow = std::conditional_t<sizeof(T) < sizeof(Part), T, Part>;
      const auto whole = [](const auto* at) {
        return reinterpret_cast<std::uintptr_t>(at) % (kVector<Narrow> * sizeof(*at)) == 0;
      };
      with_vector<Narrow>(a.value_dim % kVector<Narrow> == 0 && whole(out) && whole(part), [&](auto count) {
        using Kernel = Merge<T, Part, count>;
        launch(context, blocks_for(tokens * a.heads, Kernel::kGroups),
               Kernel{out, context.data<float>(a.lse), part, context.data<float>(a.part_lse), tokens, a.heads,
                      a.value_dim, a.accumulate});
      });
    });
  });
}

}  // namespace

void register_attention(KernelTable& table) {
  table.add<AttentionForward, Context, &forward, &forward_workspace>();
  table.add<AttentionBackward, Context, &attention_backward, &attention_backward_workspace>();
  table.add<AttentionBackwardSinks, Context, &attention_backward_sinks>();
  table.add<AttentionMerge, Context, &merge>();
  table.add<PagedAppend, Context, &paged_append, &paged_append_workspace>();
  table.add<PagedAttention, Context, &paged_attention, &paged_workspace>();
}

}  // namespace primus::turbo::PRIMUS_GPU
