// A GPU's workspace of products of experts where no plug-in tells it: that of Hopper's warpgroups (gpu.cu),
// which gather picked rows first where that pays. Other GPUs need none, so their plans are larger
// by this.
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
