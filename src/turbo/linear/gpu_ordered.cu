#include <string>

#include "base/error.h"
#include "turbo/grouped_linear/gpu_warpgroups.h"
#include "turbo/linear/gpu_ordered.h"
#include "turbo/linear/gpu_ordered_rows.h"
#include "turbo/linear/gpu_short_sum.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

bool is_aligned(const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0; }

BoxMap map_of(const Context& context, const Tensor& x, int lines) {
  return box_map({context.data<BFloat16>(x), {x.cols(), x.rows(), 1}, {x.cols(), x.elements()}, lines});
}

// ---- Few rows -----------------------------------------------------------------------------------

constexpr std::int64_t kRowsOfTile = OrderedRows<float, 16, 4>::kRows;

std::int64_t tiles_of(const Gemm& call, std::int64_t columns) {
  return blocks_for(call.b.rows(), columns) * blocks_for(call.a.rows(), kRowsOfTile);
}

template <class C, int kColumns, int kPanels>
void multiply_rows_by(Context& context, const Gemm& call) {
  using Kernel = OrderedRows<C, kColumns, kPanels>;
  const std::int64_t rows = call.a.rows(), in = call.a.cols(), out = call.b.rows();
  const std::int64_t tiles = tiles_of(call, kColumns), processors = multiprocessors(context);
  // The additions of one tile wait for each other, so two blocks of a multiprocessor compute two tiles.
  constexpr int kOfOne = 200 << 10, kOfTwo = 96 << 10;  // bytes of shared memory
  const bool two = tiles > processors;
  Kernel p{};
  p.lines = static_cast<int>(std::min<std::int64_t>(blocks_for(rows, 8) * 8, Kernel::kRows));
  const int stage = Kernel::input_bytes(p.lines) + Kernel::kWeightBytes;
  p.stages = std::clamp((two ? kOfTwo : kOfOne) / stage, 2, Kernel::kMaxStages);
  p.x_map = map_of(context, call.a, p.lines);
  p.w_map = map_of(context, call.b, kColumns);
  p.y = context.data<C>(call.c);
  p.rows = static_cast<int>(rows), p.in = static_cast<int>(in), p.out = static_cast<int>(out);
  launch(context, std::min(tiles, (two ? 2 : 1) * processors), p, Kernel::shared_bytes(p.lines, p.stages));
}

template <class C, int kColumns>
void multiply_rows_by(Context& context, const Gemm& call) {
  // Waiting for a stage takes as long as several products. A block with all of a multiprocessor's memory for
  // few rows therefore has stages of more panels.
  constexpr std::int64_t kFewRows = 16;
  if (call.a.rows() <= kFewRows && tiles_of(call, kColumns) <= multiprocessors(context))
    return multiply_rows_by<C, kColumns, 8>(context, call);
  multiply_rows_by<C, kColumns, 4>(context, call);
}

// Measurements of the numbers of columns: docs/performance-log.md.
template <class C>
void multiply_rows(Context& context, const Gemm& call) {
  const std::int64_t processors = multiprocessors(context);
  if (tiles_of(call, 64) >= 2 * processors) return multiply_rows_by<C, 64, 2>(context, call);
  if (4 * tiles_of(call, 32) >= 3 * processors) return multiply_rows_by<C, 32>(context, call);
  multiply_rows_by<C, 16>(context, call);
}

// ---- Many rows ----------------------------------------------------------------------------------

// Returns whether tiles of 128 x 256 fill the GPU.
template <class Kernel>
bool has_large_tiles(const Context& context, const Gemm& call) {
  constexpr std::int64_t kLine = 8;  // the kernel writes 16 bytes of bf16 at a time
  const std::int64_t tiles =
      blocks_for(call.a.rows(), Kernel::kRows) * blocks_for(call.b.rows(), Kernel::kCols);
  return call.b.rows() % kLine == 0 && 4 * tiles >= 3 * multiprocessors(context) &&
         call.a.rows() > kRowsOfTile;
}

template <class C>
void multiply_many_rows(Context& context, const Gemm& call) {
  using Kernel = GroupWarpgroups<C, false, false>;
  Kernel p{};
  p.left_map = map_of(context, call.a, Kernel::kRows);
  p.right_map = map_of(context, call.b, Kernel::kCols);
  p.c = context.data<C>(call.c);
  p.m = static_cast<int>(call.a.rows());
  p.n = static_cast<int>(call.b.rows());
  p.k = static_cast<int>(call.a.cols());
  p.experts = 1;
  const std::int64_t tiles = blocks_for(p.m, Kernel::kRows) * blocks_for(p.n, Kernel::kCols);
  // Blocks without a multiprocessor would begin after the collective, and the product would take twice as
  // long.
  const std::int64_t blocks = std::max<std::int64_t>(multiprocessors(context) - call.spared, 1);
  launch(context, std::min(tiles, blocks), p, Kernel::kSharedBytes);
}

}  // namespace

bool is_ordered(const Context& context, const Gemm& call) {
  if (!context.batch_invariant() || call.role != GemmRole::kForward) return false;
  if (call.a.dtype != DType::kBF16 || call.b.dtype != DType::kBF16) return false;
  if (is_short_sum(call)) return false;  // adapters: each sum depends only on its own row and column
  constexpr std::int64_t kLine = 8, kMax = std::int64_t{1} << 30;
  const bool fits = call.a.cols() > 0 && std::max({call.a.rows(), call.a.cols(), call.b.rows()}) <= kMax;
  if (has_warpgroups(context) && call.a.cols() % kLine == 0 && fits && !call.accumulate &&
      call.c.dtype != DType::kF16 && is_aligned(call.a) && is_aligned(call.b) && is_aligned(call.c))
    return true;
  throw unsupported("batch_invariant has no kernel for a product of " + std::to_string(call.a.rows()) +
                        " x " + std::to_string(call.a.cols()) + " by " + std::to_string(call.b.rows()) +
                        " x " + std::to_string(call.b.cols()) +
                        " on this GPU: it needs compute capability 9.0, and rows of multiples of 8 elements",
                    "choose the device cpu, or remove batch_invariant");
}

void multiply_ordered(Context& context, const Gemm& call) {
  if (call.a.rows() == 0 || call.b.rows() == 0) return;
#ifdef PRIMUS_GPU_VENDOR
  context.shared().count("products with one order of additions: own kernel");
#endif
  with_float_type(call.c.dtype, [&](auto tag) {
    using C = decltype(tag);
    if (has_large_tiles<GroupWarpgroups<C, false, false>>(context, call)) {
      multiply_many_rows<C>(context, call);
    } else {
      multiply_rows<C>(context, call);
    }
  });
}

}  // namespace primus::turbo::PRIMUS_GPU
