// Attention over pages by warpgroups: on batch-invariant devices, and for prompts on all devices that have
// warpgroups.
#include "turbo/attention/gpu_attention.h"
#include "turbo/attention/gpu_paged_warpgroups.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

template <int kDim, bool kDecoding>
void attend(Context& context, const PagedAttention& a) {
  using Kernel = PagedWarpgroups<kDim, kDim, kDecoding>;
  // The block tables name only rows of the cache, whose size the call does not tell.
  constexpr std::int64_t kAnyRows = std::int64_t{1} << 30;
  const std::int64_t group = a.heads / a.kv_heads, batch = a.sequences.batch();
  const auto count = [](std::int64_t n) { return static_cast<int>(n); };
  const int lines = kDecoding ? count(blocks_for(group, 8) * 8) : Kernel::kRows;
  const auto* const q = context.data<BFloat16>(a.q);
  const auto map = [&](const Tensor& x, std::int64_t stride) {
    return box_map({context.data<BFloat16>(x),
                    {a.kv_heads * kDim, kAnyRows, 1},
                    {stride, kAnyRows},
                    Kernel::kPageLines});
  };
  Kernel kernel{
      .of = {Pages(context, a.sequences), count(a.window), count(a.chunk)},
      .queries =
          kDecoding ? box_map({q, {kDim, a.heads, a.tokens}, {kDim, a.q_stride}, lines})
                    : box_map({q, {a.heads * kDim, a.tokens, 1}, {a.q_stride, a.tokens * a.q_stride}, lines}),
      .keys = map(a.k, a.k_stride),
      .values = map(a.v, a.v_stride),
      .sinks = optional<BFloat16>(context, a.sinks),
      .out = context.data<BFloat16>(a.out),
      .tokens = count(a.tokens),
      .heads = count(a.heads),
      .group = count(group),
      .query_lines = lines,
      .scale = a.scale};
  const std::int64_t blocks =
      kDecoding ? a.tokens * a.kv_heads : blocks_for(a.tokens, Kernel::kRows) * (batch + 1) * a.heads;
  launch(context, blocks, kernel, Kernel::kSharedBytes);
}

template <int kDim>
void attend(Context& context, const PagedAttention& a) {
  // The bits do not depend on this choice.
  constexpr std::int64_t kFewTokens = 8, kMaxGroup = PagedWarpgroups<kDim, kDim, true>::kRows;
  if (a.tokens <= std::max(a.sequences.batch(), kFewTokens) && a.heads / a.kv_heads <= kMaxGroup)
    return attend<kDim, true>(context, a);
  attend<kDim, false>(context, a);
}

bool fits_warpgroups(Context& context, const PagedAttention& a) {
  return a.q.dtype == DType::kBF16 && a.score_cap == 0 && a.head_dim == a.value_dim &&
         has_order(a.head_dim) &&
         whole_lines(context, {&a.q, &a.k, &a.v, &a.out}, {a.q_stride, a.k_stride, a.v_stride});
}

}  // namespace

bool paged_by_warpgroups(Context& context, const PagedAttention& a) {
  if (!fits_warpgroups(context, a)) return false;
  if (a.tokens == 0) return true;
  if (a.head_dim == 64) {
    attend<64, false>(context, a);
  } else {
    attend<128, false>(context, a);
  }
  return true;
}

void check_paged_order(Context& context, const PagedAttention& a) {
  if (!fits_warpgroups(context, a)) refuse_order(a.head_dim, a.value_dim, a.q.dtype);
}

void paged_in_order(Context& context, const PagedAttention& a) {
  check_paged_order(context, a);
#ifdef PRIMUS_GPU_VENDOR
  context.shared().count("attention over pages with one order of additions: own kernel");
#endif
  if (a.tokens == 0) return;
  if (a.head_dim == 64) return attend<64>(context, a);
  attend<128>(context, a);
}

}  // namespace primus::turbo::PRIMUS_GPU
