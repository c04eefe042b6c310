#include <string>

#include "base/error.h"
#include "turbo/gpu/few_dots.h"
#include "turbo/gpu/gemm_tile.h"
#include "turbo/gpu/loops.h"
#include "turbo/gpu/register.h"
#include "turbo/grouped_linear/gathered_rows.h"
#include "turbo/grouped_linear/gpu_chosen.h"
#include "turbo/grouped_linear/gpu_chosen_ordered.h"
#include "turbo/grouped_linear/gpu_tiles.h"
#include "turbo/grouped_linear/gpu_warpgroups.h"
#include "turbo/grouped_linear/grouped_linear.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// ---- Products -----------------------------------------------------------------------------------

// Returns for each expert the number of row tiles of the experts before it.
const std::int32_t* count_row_tiles(Context& context, const GroupedGemm& call, std::int64_t experts) {
  auto* const first_tiles = partials<std::int32_t>(context, experts + 1);
  launch(context, 1, CountRowTiles{context.data<std::int32_t>(call.offsets), first_tiles, experts});
  return first_tiles;
}

// ---- Rows that are gathered first ---------------------------------------------------------------

// Copies rows that are picked by index to contiguous memory. Warpgroup products fetch contiguous rows with
// the TMA. The TMA is faster than fetching rows by index: by a sixth if tiles are full, and by a factor of
// three if each expert has only a few rows.
template <int kCount>
struct GatherPicked {
  const BFloat16* x;
  const std::int32_t* picks;
  BFloat16* out;
  std::int64_t cols;
  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t i) const {
    *reinterpret_cast<Pack<BFloat16, kCount>*>(out + row * cols + i) =
        *reinterpret_cast<const Pack<BFloat16, kCount>*>(x + picks[row] * cols + i);
  }
};

// Returns whether a product with rows of multiples of 16 bytes uses warpgroups.
bool is_wide(const Context& context, const GroupedGemm& call) {
  const Tensor& of_experts = call.role == GemmRole::kWeightGradient ? call.c : call.b;
  const std::int64_t cols = call.role == GemmRole::kForward ? of_experts.shape[1] : of_experts.shape[2];
  // The TMA does not accept empty tensors.
  return has_warpgroups(context) && cols >= WideSums::kCols && call.a.rows() > 0 && call.b.rows() > 0;
}

// Returns the operand whose rows are gathered first, if any, and the workspace for these rows.
GatheredRows gathered(const Context& context, const GroupedGemm& call) {
  const GatheredRows picked = gathered_rows(call);
  if (!picked.operand || !is_wide(context, call) || picked.operand->cols() % kVector<BFloat16> != 0)
    return {};
  return picked;
}

std::int64_t workspace(Context& context, const GroupedGemm& call) {
  if (!call.chosen.absent()) {
    const bool taken = context.batch_invariant() ? takes_chosen_in_order(context, call) : takes_chosen(call);
    return taken ? 0 : GroupedGemm::kNotTaken;
  }
  return gathered(context, call).bytes();
}

// Copies the rows that are picked by index to the workspace, and returns a call that reads the copies.
GroupedGemm gather(Context& context, const GroupedGemm& call, const Tensor& operand) {
  const bool a = !call.a_rows.absent();
  const std::int64_t rows = call.rows(), cols = operand.cols();
  const Tensor in_order(call.workspace.data, DType::kBF16, {rows, cols});
  constexpr int kCount = kVector<BFloat16>;
  for_each_of_used_rows<kCount>(
      context, rows, context.data<std::int32_t>(call.offsets) + call.offsets.elements() - 1, cols,
      GatherPicked<kCount>{context.data<BFloat16>(operand),
                           context.data<std::int32_t>(a ? call.a_rows : call.b_rows),
                           context.data<BFloat16>(in_order), cols});
  GroupedGemm result = call;
  (a ? result.a : result.b) = in_order;
  (a ? result.a_rows : result.b_rows) = {};
  return result;
}

// Multiplies by warpgroups (see has_warpgroups). Rows must be multiples of 16 bytes.
template <class C, bool kLeftByDepth, bool kRightByDepth>
void multiply_by_warpgroups(Context& context, const GroupedGemm& call) {
  using Kernel = GroupWarpgroups<C, kLeftByDepth, kRightByDepth>;
  const Tensor& of_experts = Kernel::kSumsRows ? call.c : call.b;
  const std::int64_t experts = of_experts.shape[0], out = of_experts.shape[1], in = of_experts.shape[2];
  const bool forward = call.role == GemmRole::kForward;
  Kernel p{};
  p.a = context.data<BFloat16>(call.a), p.b = context.data<BFloat16>(call.b), p.c = context.data<C>(call.c);
  const auto lines_of = [](bool by_depth, int side) { return by_depth ? Kernel::kDepth : side; };
  const auto activations = [&](const Tensor& x, int side) {
    const std::int64_t rows = x.rows(), cols = x.cols();
    return box_map(
        {context.data<BFloat16>(x), {cols, rows, 1}, {cols, rows * cols}, lines_of(Kernel::kSumsRows, side)});
  };
  if (call.a_rows.absent()) p.left_map = activations(call.a, Kernel::kRows);
  if constexpr (Kernel::kSumsRows) {
    if (call.b_rows.absent()) p.right_map = activations(call.b, Kernel::kCols);
  } else {
    p.right_map = box_map({p.b, {in, out, experts}, {in, out * in}, lines_of(kRightByDepth, Kernel::kCols)});
  }
  if constexpr (Kernel::kSumsRows) {
    const auto results = [&](int lines) {
      const std::int64_t words = in * static_cast<std::int64_t>(sizeof(C) / sizeof(BFloat16));
      return box_map(
          {reinterpret_cast<const BFloat16*>(p.c), {words, out, experts}, {words, out * words}, lines});
    };
    if constexpr (Kernel::kBoxes) p.result_map = results(GroupBoxes::kRows);
    p.prefetched_map = results(Kernel::kRows);
  }
  const std::int64_t m = Kernel::kSumsRows ? out : call.rows(), n = forward ? out : in;
  p.m = static_cast<int>(m), p.n = static_cast<int>(n), p.k = static_cast<int>(forward ? in : out);
  p.experts = static_cast<int>(experts);
  p.offsets = context.data<std::int32_t>(call.offsets);
  p.a_picks = optional<std::int32_t>(context, call.a_rows);
  p.b_picks = optional<std::int32_t>(context, call.b_rows);
  p.accumulate = call.accumulate;
  std::int64_t row_tiles = blocks_for(m, Kernel::kRows);
  if constexpr (Kernel::kSumsRows) {
    row_tiles *= experts;
  } else {
    row_tiles += experts;
    p.first_tiles = count_row_tiles(context, call, experts);
  }
  launch(context, std::min(row_tiles * blocks_for(n, Kernel::kCols), multiprocessors(context)), p,
         Kernel::kSharedBytes);
}

// Multiplies bf16 operands on the matrix units. Rows of all operands must be multiples of 16 bytes.
template <class C>
bool multiply_large_tiles(Context& context, const GroupedGemm& call) {
  const bool weights = call.role == GemmRole::kWeightGradient, forward = call.role == GemmRole::kForward;
  const Tensor& of_experts = weights ? call.c : call.b;
  const std::int64_t experts = of_experts.shape[0], out = of_experts.shape[1], in = of_experts.shape[2];
  const auto* const a = context.data<BFloat16>(call.a);
  const auto* const b = context.data<BFloat16>(call.b);
  if (!rows_of_vectors<BFloat16>(out, a, b) || in % kVector<BFloat16> != 0) return false;
  if (reinterpret_cast<std::uintptr_t>(context.data<C>(call.c)) % 16 != 0) return false;
  if (const GatheredRows picked = gathered(context, call); picked.gathers)
    return multiply_large_tiles<C>(context, gather(context, call, *picked.operand));
  const bool wide = is_wide(context, call);
  const auto run = [&]<bool kLeftByDepth, bool kRightByDepth>() {
    if (wide) return multiply_by_warpgroups<C, kLeftByDepth, kRightByDepth>(context, call);
    using Kernel = GroupTiles<C, kLeftByDepth, kRightByDepth>;
    Kernel p{};
    p.a = a, p.b = b, p.c = context.data<C>(call.c);
    p.m = weights ? out : call.rows(), p.n = forward ? out : in, p.k = forward ? in : out;
    p.left_step = forward ? in : out, p.right_step = in;
    p.experts = experts, p.b_expert = weights ? 0 : out * in, p.c_expert = out * in;
    p.offsets = context.data<std::int32_t>(call.offsets);
    p.a_picks = optional<std::int32_t>(context, call.a_rows);
    p.b_picks = optional<std::int32_t>(context, call.b_rows);
    p.accumulate = call.accumulate;
    const std::int64_t col_tiles = blocks_for(p.n, kGroupSide), full = blocks_for(p.m, kGroupSide);
    if (weights) return launch(context, experts * full * col_tiles, p, Kernel::kSharedBytes);
    p.first_tiles = count_row_tiles(context, call, experts);
    launch(context, (full + experts) * col_tiles, p, Kernel::kSharedBytes);
  };
  if (weights) {
    run.template operator()<true, true>();
  } else if (forward) {
    run.template operator()<false, false>();
  } else {
    run.template operator()<false, true>();
  }
  return true;
}

// Multiplies a small number of rows, as in decoding, where every expert has few rows.
template <class C>
bool multiply_few_rows(Context& context, const GroupedGemm& call) {
  constexpr std::int64_t kMaxRows = 64, kMaxOfExpert = 2;
  const std::int64_t rows = call.rows(), experts = call.b.shape[0], out = call.b.shape[1],
                     in = call.b.shape[2];
  const auto* const x = context.data<BFloat16>(call.a);
  const auto* const w = context.data<BFloat16>(call.b);
  if (call.role != GemmRole::kForward || rows > std::min(kMaxRows, kMaxOfExpert * experts)) return false;
  if (!rows_of_vectors<BFloat16>(in, x, w)) return false;
  const MatrixOfExpert where{context.data<std::int32_t>(call.offsets),
                             optional<std::int32_t>(context, call.a_rows), experts};
  C* const y = context.data<C>(call.c);
  // If rows are short, a warp reads more rows at a time, so that enough loads run concurrently.
  constexpr std::int64_t kShortRow = 1024;
  if (in <= kShortRow) {
    few_dots<4>(context, x, w, y, rows, out, in, where);
  } else {
    few_dots<2>(context, x, w, y, rows, out, in, where);
  }
  return true;
}

Error no_ordered_groups(const GroupedGemm& call) {
  return unsupported("batch_invariant has no kernel for products of " + std::to_string(call.b.shape[0]) +
                         " experts with " + std::to_string(call.b.shape[1]) + " x " +
                         std::to_string(call.b.shape[2]) +
                         " elements on this GPU: it needs bf16, and both numbers must be multiples of 8",
                     "choose the device cpu, or remove batch_invariant");
}

// Launches, for every expert, enough blocks for all rows of the call. Blocks after the expert's last row end
// at once. The unused blocks take a few microseconds, but the host needs no synchronization.
template <class T, class C>
void multiply_groups(Context& context, const GroupedGemm& call) {
  // Products of few rows add in another order than tiles. In tiles, each sum is one chain of the matrix
  // units' additions over k. The choice between both kinds of tiles depends only on the matrices of the
  // experts.
  const bool ordered = context.batch_invariant() && call.role == GemmRole::kForward;
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (!ordered && multiply_few_rows<C>(context, call)) return;
    if (multiply_large_tiles<C>(context, call)) return;
  }
  if (ordered && call.rows() > 0) throw no_ordered_groups(call);
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
}

void grouped_gemm(Context& context, const GroupedGemm& call) {
  if (!call.chosen.absent()) {
    return context.batch_invariant() ? multiply_chosen_in_order(context, call)
                                     : multiply_chosen(context, call);
  }
  with_float_type(call.a.dtype, [&](auto tag) {
    with_float_type(call.c.dtype,
                    [&](auto to) { multiply_groups<decltype(tag), decltype(to)>(context, call); });
  });
}

// ---- Biases -------------------------------------------------------------------------------------

// A thread processes kCount consecutive columns.
template <class T, int kCount>
struct AddGroupBias {
  static constexpr int kThreads = 256;
  const T *x, *bias;
  T* y;
  const std::int32_t* offsets;
  std::int64_t experts, n;

  // Each block processes one row.
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
    if (low == experts) return;
    for (std::int64_t i = thread() * kCount; i < n; i += kThreads * kCount) {
      float sum[kCount], addend[kCount];
      load<kCount>(x + row * n + i, sum);
      load<kCount>(bias + low * n + i, addend);
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) sum[k] += addend[k];
      store<kCount>(y + row * n + i, sum);
    }
  }
};

void bias(Context& context, const GroupedBias& a) {
  with_float_type(a.y.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T *x = context.data<T>(a.x), *bias = context.data<T>(a.bias);
    T* y = context.data<T>(a.y);
    const std::int64_t n = a.y.cols();
    with_vector<T>(rows_of_vectors<T>(n, x, bias, y), [&](auto count) {
      launch(context, a.y.rows(),
             AddGroupBias<T, count>{x, bias, y, context.data<std::int32_t>(a.offsets), a.bias.rows(), n});
    });
  });
}

// One thread computes each element, and adds rows in order.
template <class T>
struct GroupBiasGradient {
  const T* d_y;
  float* d_bias;
  const std::int32_t* offsets;
  std::int64_t n;
  bool accumulate;
  PRIMUS_DEVICE void operator()(std::int64_t expert, std::int64_t i) const {
    float sum = accumulate ? d_bias[expert * n + i] : 0.0F;
    const std::int64_t end = offsets[expert + 1];
    PRIMUS_UNROLL_BY(8)
    for (std::int64_t row = offsets[expert]; row < end; ++row) sum += to_float(d_y[row * n + i]);
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
  table.add<GroupedGemm, Context, &grouped_gemm, &workspace>();
  table.add<GroupedBias, Context, &bias>();
  table.add<GroupedBiasBackward, Context, &bias_backward>();
}

}  // namespace primus::turbo::PRIMUS_GPU
