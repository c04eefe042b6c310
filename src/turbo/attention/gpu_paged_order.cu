// Attention over pages by warpgroups: on batch-invariant devices, and for prompts on all devices that have
// warpgroups.
#include "turbo/attention/gpu_attention.h"
#include "turbo/attention/gpu_paged_warpgroups.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// Returns whether the tokens are decoded: a tile has the heads of one token that share keys. The bits do not
// depend on this choice.
bool decodes(const PagedAttention& a) {
  constexpr std::int64_t kFewTokens = 8, kMaxGroup = PagedWarpgroups<64, 64, true>::kRows;
  return a.tokens <= std::max(a.sequences.batch(), kFewTokens) && a.heads / a.kv_heads <= kMaxGroup;
}

// Returns the number of runs per token that have separate blocks, or 1: a block computes all runs of a
// token. The bits do not depend on this choice. With a window or chunk, one run is added, because the visible
// keys may begin anywhere in a run.
std::int64_t runs_apart(const Context& context, const PagedAttention& a) {
  constexpr std::int64_t kMaxBytes = std::int64_t{1} << 30;
  std::int64_t seen = a.sequences.capacity();
  if (a.window > 0) seen = std::min(seen, a.window);
  if (a.chunk > 0) seen = std::min(seen, a.chunk);
  const std::int64_t runs =
      std::min(blocks_for(a.sequences.capacity(), kRunKeys), blocks_for(seen, kRunKeys) + 1);
  const std::int64_t bytes = a.tokens * a.heads * runs * (a.value_dim + 2) * 4;
  if (!decodes(a) || runs == 1 || bytes > kMaxBytes || a.tokens * a.kv_heads >= 2 * multiprocessors(context))
    return 1;
  return runs;
}

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
  const std::int64_t runs = kDecoding ? runs_apart(context, a) : 1;
  auto* const parts = runs > 1 ? context.data<float>(a.workspace) : nullptr;
  const Kernel kernel{
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
      .runs = count(runs),
      .in_runs = context.batch_invariant(),
      .parts = parts,
      .scale = a.scale};
  const std::int64_t blocks =
      kDecoding ? a.tokens * a.kv_heads * runs : blocks_for(a.tokens, Kernel::kRows) * (batch + 1) * a.heads;
  launch(context, blocks, kernel, Kernel::kSharedBytes);
  if (parts)
    launch(context, a.tokens * a.heads,
           PagedMerge<kDim>{kernel.of, parts, kernel.sinks, kernel.out, kernel.heads, kernel.runs});
}

template <int kDim>
void attend(Context& context, const PagedAttention& a) {
  if (decodes(a)) return attend<kDim, true>(context, a);
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

std::int64_t paged_order_workspace(Context& context, const PagedAttention& a) {
  check_paged_order(context, a);
  const std::int64_t runs = runs_apart(context, a);
  return runs > 1 ? a.tokens * a.heads * runs * (a.value_dim + 2) * static_cast<std::int64_t>(sizeof(float))
                  : 0;
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
