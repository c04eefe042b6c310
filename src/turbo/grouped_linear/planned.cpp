// A GPU's products of experts need no workspace.
#include "turbo/devices/planned_kernels.h"
#include "turbo/grouped_linear/grouped_linear.h"

namespace primus::turbo {

void plan_grouped_products(KernelTable& table) {
  table.add<GroupedGemm, KernelContext, &run_nothing<GroupedGemm>>();
}

}  // namespace primus::turbo
