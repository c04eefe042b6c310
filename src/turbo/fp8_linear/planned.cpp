// A GPU's workspace of products in fp8 where no plug-in tells it: what a library of products gets.
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
