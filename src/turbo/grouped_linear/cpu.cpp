// Grouped GEMM on the CPU, by turbo/gemm. All threads together compute the product of a large expert.
// Products of small experts are computed concurrently, each in one thread, beginning with the largest expert.
// The threshold for small experts affects only the time, because cpu_gemm() returns the same bits for any
// number of threads.
#include <algorithm>
#include <numeric>

#include "turbo/check.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/gemm/gemm.h"
#include "turbo/grouped_linear/grouped_linear.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// An expert is small if it has at most rows / (kPartOfShare * threads) rows. This limits how long other
// threads wait for the last thread.
constexpr std::int64_t kPartOfShare = 8;

// Data prefetched for the next expert must not evict this expert's operands from L2.
constexpr std::int64_t kMaxReadAhead = std::int64_t{512} << 10;

std::int64_t max_parallel_rows(std::int64_t rows, int threads) {
  return threads == 1 ? 0 : rows / (kPartOfShare * threads);
}

// Returns the arguments of the product of an expert with `rows` rows; m or k is the number of rows.
GemmArgs shape_of(const CpuContext& context, const GroupedGemm& call, std::int64_t rows) {
  GemmArgs args;
  args.row_invariant = context.batch_invariant();
  args.ab_dtype = call.a.dtype;
  args.c_dtype = call.c.dtype;
  args.accumulate = call.accumulate;
  args.lda = call.a.cols();
  args.ldb = call.b.cols();
  args.ldc = call.c.cols();
  args.n = call.c.cols();
  if (call.role == GemmRole::kWeightGradient) {
    args.layout = GemmLayout::kTN;
    args.m = call.a.cols();
    args.k = rows;
  } else {
    args.layout = call.role == GemmRole::kForward ? GemmLayout::kNT : GemmLayout::kNN;
    args.m = rows;
    args.k = call.a.cols();
  }
  return args;
}

class Experts {
 public:
  Experts(const CpuContext& context, const GroupedGemm& call)
      : context_(context),
        call_(call),
        a_(context.data<char>(call.a)),
        b_(context.data<char>(call.b)),
        c_(context.data<char>(call.c)),
        workspace_(context.data<char>(call.workspace)),
        offsets_(context.data<std::int32_t>(call.offsets)),
        a_rows_(call.a_rows.absent() ? nullptr : context.data<std::int32_t>(call.a_rows)),
        b_rows_(call.b_rows.absent() ? nullptr : context.data<std::int32_t>(call.b_rows)) {}

  std::int64_t rows(std::int64_t expert) const { return offsets_[expert + 1] - offsets_[expert]; }

  // `next` is the expert whose product this thread will probably compute next, or -1.
  void multiply(ThreadPool& pool, std::int64_t expert, std::int64_t next, std::int64_t workspace_at,
                std::int64_t workspace_bytes) const {
    GemmArgs args = shape_of(context_, call_, rows(expert));
    const std::int64_t first = offsets_[expert];
    const bool weights = call_.role == GemmRole::kWeightGradient;
    args.a = a_rows_ ? a_ : rows_of(call_.a, a_, expert).data;
    args.rows.a = a_rows_ ? a_rows_ + first : nullptr;
    args.b = b_rows_ ? b_ : operand_b(expert).data;
    args.rows.b = b_rows_ ? b_rows_ + first : nullptr;
    args.c_past_caches = weights && call_.c.bytes() > kGemmPastCaches;
    if (next >= 0) args.ahead = read_ahead(next);
    args.c = c_ + (weights ? expert * matrix(call_.c) : first * args.ldc) * size_of(call_.c.dtype);
    args.workspace = workspace_ + workspace_at;
    args.workspace_bytes = static_cast<std::size_t>(workspace_bytes);
    cpu_gemm(pool, args);
  }

 private:
  static std::int64_t matrix(const Tensor& weights) { return weights.shape[1] * weights.shape[2]; }

  GemmReadAhead rows_of(const Tensor& activation, const char* data, std::int64_t expert) const {
    const std::int64_t row = activation.cols() * size_of(activation.dtype);
    return {data + offsets_[expert] * row, rows(expert) * row};
  }

  GemmReadAhead operand_b(std::int64_t expert) const {
    if (call_.role == GemmRole::kWeightGradient) return rows_of(call_.b, b_, expert);
    const std::int64_t bytes = matrix(call_.b) * size_of(call_.b.dtype);
    return {b_ + expert * bytes, bytes};
  }

  // Returns the operands of an expert to prefetch: B first, because B is packed before A. Rows that are
  // picked by index are not prefetched: such rows are not contiguous, and products of other experts have
  // already read the rows.
  std::array<GemmReadAhead, 2> read_ahead(std::int64_t expert) const {
    std::array<GemmReadAhead, 2> ahead;
    if (!b_rows_) ahead[0] = operand_b(expert);
    if (rows(expert) == 0 || ahead[0].bytes > kMaxReadAhead) return {};
    if (!a_rows_) ahead[1] = rows_of(call_.a, a_, expert);
    ahead[1].bytes = std::min(ahead[1].bytes, kMaxReadAhead - ahead[0].bytes);
    return ahead;
  }

  const CpuContext& context_;
  const GroupedGemm& call_;
  const char *a_, *b_;
  char *c_, *workspace_;
  const std::int32_t *offsets_, *a_rows_, *b_rows_;
};

constexpr std::int64_t kLine = 64;
std::int64_t whole_lines(std::int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

std::int64_t workspace_for(const CpuContext& context, const GroupedGemm& call, std::int64_t rows,
                           int threads) {
  const GemmArgs args = shape_of(context, call, std::max<std::int64_t>(rows, 1));
  return whole_lines(static_cast<std::int64_t>(cpu_gemm_workspace_bound(args, threads)));
}

// The workspace begins with the order of the experts. The scratch memory of the experts' products follows.
std::int64_t order_bytes(const GroupedGemm& call) { return whole_lines(call.offsets.bytes()); }

std::int64_t workspace(CpuContext& context, const GroupedGemm& call) {
  if (!call.chosen.absent()) return GroupedGemm::kNotTaken;  // fusing does not make a CPU faster
  const std::int64_t rows = call.rows();
  const int threads = context.threads();
  return order_bytes(call) +
         std::max(workspace_for(context, call, rows, threads),
                  threads * workspace_for(context, call, max_parallel_rows(rows, threads), 1));
}

void grouped_gemm(CpuContext& context, const GroupedGemm& call) {
  PRIMUS_CHECK(GroupedGemm::kId, call.chosen.absent());  // because is_taken() returns false for such calls
  ThreadPool& pool = context.pool();
  const Experts experts(context, call);
  const std::int64_t count = call.offsets.elements() - 1, all_rows = call.rows();
  const std::int64_t maximum = max_parallel_rows(all_rows, pool.size());
  const std::int64_t products_at = order_bytes(call);
  auto* const order = context.data<std::int32_t>(call.workspace);
  std::iota(order, order + count, 0);
  std::sort(order, order + count, [&](std::int32_t x, std::int32_t y) {
    return experts.rows(x) != experts.rows(y) ? experts.rows(x) > experts.rows(y) : x < y;
  });
  std::int64_t large = 0;
  const auto expert_at = [&](std::int64_t i) { return i < count ? order[i] : -1; };
  for (; large < count && experts.rows(order[large]) > maximum; ++large) {
    experts.multiply(pool, order[large], expert_at(large + 1), products_at,
                     call.workspace.bytes() - products_at);
  }
  const std::int64_t each = workspace_for(context, call, maximum, 1);
  pool.parallel_for(count - large, 1, [&](std::int64_t i, std::int64_t, int thread) {
    ThreadPool single(1);
    experts.multiply(single, order[large + i], expert_at(large + i + pool.size()),
                     products_at + thread * each, each);
  });
}

void bias(CpuContext& context, const GroupedBias& a) {
  with_float_type(a.y.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t n = a.y.cols();
    const auto* offsets = context.data<std::int32_t>(a.offsets);
    const std::int64_t experts = a.bias.rows();
    parallel_ranges(context, a.y.rows(), 2 * n * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      std::int64_t expert = std::upper_bound(offsets, offsets + experts + 1, begin) - offsets - 1;
      for (std::int64_t row = begin; row < end; ++row) {
        const T* x = context.data<T>(a.x) + row * n;
        T* y = context.data<T>(a.y) + row * n;
        while (expert < experts && row >= offsets[expert + 1]) ++expert;
        if (expert == experts) return;
        const T* b = context.data<T>(a.bias) + expert * n;
        PRIMUS_SIMD()
        for (std::int64_t i = 0; i < n; ++i) y[i] = from_float<T>(to_float(x[i]) + to_float(b[i]));
      }
    });
  });
}

// One thread computes each element, and adds rows in order.
void bias_backward(CpuContext& context, const GroupedBiasBackward& a) {
  constexpr std::int64_t kColumns = 64;
  with_float_type(a.d_y.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t n = a.d_y.cols(), blocks = (n + kColumns - 1) / kColumns;
    const auto* offsets = context.data<std::int32_t>(a.offsets);
    context.pool().parallel_for(a.d_bias.rows() * blocks, 1, [&](std::int64_t task, std::int64_t, int) {
      const std::int64_t expert = task / blocks, column = task % blocks * kColumns;
      const std::int64_t width = std::min(kColumns, n - column);
      float* to = context.data<float>(a.d_bias) + expert * n + column;
      float sum[kColumns] = {};
      if (a.accumulate) std::copy(to, to + width, sum);
      for (std::int64_t row = offsets[expert]; row < offsets[expert + 1]; ++row) {
        const T* from = context.data<T>(a.d_y) + row * n + column;
        PRIMUS_SIMD()
        for (std::int64_t i = 0; i < width; ++i) sum[i] += to_float(from[i]);
      }
      std::copy(sum, sum + width, to);
    });
  });
}

}  // namespace

void register_grouped_linear(KernelTable& table) {
  table.add<GroupedGemm, CpuContext, &grouped_gemm, &workspace>();
  table.add<GroupedBias, CpuContext, &bias>();
  table.add<GroupedBiasBackward, CpuContext, &bias_backward>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
