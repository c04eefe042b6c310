#include "turbo/attention/cpu_attention.h"
#include "turbo/cpu/register.h"

namespace primus::turbo::PRIMUS_CPU_ISA {

void register_attention(KernelTable& table) {
  table.add<AttentionForward, CpuContext, &attention_forward, &attention_forward_workspace>();
  table.add<AttentionBackward, CpuContext, &attention_backward, &attention_backward_workspace>();
  table.add<AttentionBackwardSinks, CpuContext, &attention_backward_sinks>();
  table.add<AttentionMerge, CpuContext, &attention_merge>();
  table.add<PagedAppend, CpuContext, &paged_append>();
  table.add<PagedAttention, CpuContext, &paged_attention, &paged_attention_workspace>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
