// Plans a GPU's workspace for grouped GEMM without a plug-in that reports it. Assumes Hopper's warpgroups
// (gpu.cu), which gather picked rows first where that pays. Other GPUs need no workspace, so their plans are
// too large by this amount.
#include "turbo/devices/planned_kernels.h"
#include "turbo/grouped_linear/gathered_rows.h"

namespace primus::turbo {
namespace {

std::int64_t workspace(KernelContext&, const GroupedGemm& call) { return gathered_rows(call).bytes(); }

}  // namespace

void plan_grouped_products(KernelTable& table) {
  table.add<GroupedGemm, KernelContext, &run_nothing<GroupedGemm>, &workspace>();
}

}  // namespace primus::turbo
