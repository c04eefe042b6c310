// Computes the workspace size of products for GPUs whose plug-in is not loaded: that of the vendor's library.
#include "turbo/devices/planned_kernels.h"
#include "turbo/linear/library_product.h"
#include "turbo/linear/linear.h"

namespace primus::turbo {
namespace {

std::int64_t of_library(KernelContext&, const Gemm&) { return kLibraryWorkspaceBytes; }

}  // namespace

void plan_products(KernelTable& table) { table.add<Gemm, KernelContext, &run_nothing<Gemm>, &of_library>(); }

}  // namespace primus::turbo
