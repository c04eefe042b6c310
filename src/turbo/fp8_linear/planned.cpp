// Computes the workspace size of fp8 products for a GPU whose plug-in is not loaded: the size of the
// workspace of the vendor's library.
#include "turbo/devices/planned_kernels.h"
#include "turbo/fp8_linear/fp8_linear.h"
#include "turbo/linear/library_product.h"

namespace primus::turbo {
namespace {

std::int64_t of_library(KernelContext&, const Fp8Gemm&) { return kLibraryWorkspaceBytes; }

}  // namespace

void plan_fp8_products(KernelTable& table) {
  table.add<Fp8Gemm, KernelContext, &run_nothing<Fp8Gemm>, &of_library>();
}

}  // namespace primus::turbo
