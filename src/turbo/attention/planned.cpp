// Computes the workspace sizes of our own attention kernels for a GPU whose plug-in is not loaded.
#include "turbo/attention/attention.h"
#include "turbo/devices/planned_kernels.h"

namespace primus::turbo {
namespace {

// The workspace holds delta = out · d_out for each row and head, in fp32.
std::int64_t backward_workspace(KernelContext&, const AttentionBackward& call) {
  return call.shape.heads * call.shape.batch * call.shape.seq_q * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace

void plan_attention(KernelTable& table) {
  table.add<AttentionForward, KernelContext, &run_nothing<AttentionForward>>();
  table.add<AttentionBackward, KernelContext, &run_nothing<AttentionBackward>, &backward_workspace>();
}

}  // namespace primus::turbo
