#include "turbo/devices/planned_kernels.h"

#include <stdexcept>

#include "turbo/attention/attention.h"
#include "turbo/cpu/cpu_kernels.h"
#include "turbo/fp8_linear/fp8_linear.h"
#include "turbo/grouped_linear/grouped_linear.h"
#include "turbo/linear/library_product.h"
#include "turbo/linear/linear.h"

namespace primus::turbo {
namespace {

template <class Call>
void run_nothing(KernelContext&, const Call&) {
  throw std::logic_error("a planned device has no kernels to run");
}

template <class Call>
std::int64_t of_library(KernelContext&, const Call&) {
  return kLibraryWorkspaceBytes;
}

// Of each row and head the product of output and gradient, in fp32.
std::int64_t of_attention(KernelContext&, const AttentionBackward& call) {
  return call.shape.heads * call.shape.batch * call.shape.seq_q * static_cast<std::int64_t>(sizeof(float));
}

KernelTable make_table() {
  KernelTable table = cpu_kernel_table();
  table.add<Gemm, KernelContext, &run_nothing<Gemm>, &of_library<Gemm>>();
  table.add<Fp8Gemm, KernelContext, &run_nothing<Fp8Gemm>, &of_library<Fp8Gemm>>();
  table.add<GroupedGemm, KernelContext, &run_nothing<GroupedGemm>>();
  table.add<AttentionForward, KernelContext, &run_nothing<AttentionForward>>();
  table.add<AttentionBackward, KernelContext, &run_nothing<AttentionBackward>, &of_attention>();
  return table;
}

}  // namespace

const KernelTable& planned_kernels() {
  static const KernelTable table = make_table();
  return table;
}

}  // namespace primus::turbo
