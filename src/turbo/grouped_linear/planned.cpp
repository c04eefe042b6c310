// Computes the workspace size of grouped GEMM for a GPU whose plug-in is not loaded. The size is that of a
// Hopper GPU, where gpu.cu may first copy rows that are picked by index to the workspace. Other GPUs need no
// workspace.
#include "turbo/devices/planned_kernels.h"
#include "turbo/grouped_linear/gathered_rows.h"

namespace primus::turbo {
namespace {

std::int64_t workspace(KernelContext&, const GroupedGemm& call) {
  return call.chosen.absent() ? gathered_rows(call).bytes() : GroupedGemm::kNotTaken;
}

}  // namespace

void plan_grouped_products(KernelTable& table) {
  table.add<GroupedGemm, KernelContext, &run_nothing<GroupedGemm>, &workspace>();
}

}  // namespace primus::turbo
