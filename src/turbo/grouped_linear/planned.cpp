// A GPU's workspace of products of experts where no plug-in tells it: that of Hopper's warpgroups (gpu.cu),
// which gather picked rows first where many tiles read them. Other GPUs need none, so their plans are larger
// by this.
#include "turbo/devices/planned_kernels.h"
#include "turbo/grouped_linear/grouped_linear.h"

namespace primus::turbo {
namespace {

std::int64_t gathered_rows(KernelContext&, const GroupedGemm& call) {
  constexpr std::int64_t kLeastCols = 4096;  // of the other operand
  const bool a = !call.a_rows.absent(), b = !call.b_rows.absent();
  if (call.a.dtype != DType::kBF16 || a == b) return 0;
  const Tensor &operand = a ? call.a : call.b, &other = a ? call.b : call.a;
  const std::int64_t cols = call.role == GemmRole::kForward ? other.shape[1] : other.cols();
  return cols >= kLeastCols ? call.rows() * operand.cols() * size_of(DType::kBF16) : 0;
}

}  // namespace

void plan_grouped_products(KernelTable& table) {
  table.add<GroupedGemm, KernelContext, &run_nothing<GroupedGemm>, &gathered_rows>();
}

}  // namespace primus::turbo
