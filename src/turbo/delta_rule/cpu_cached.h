#pragma once

#include "device/cpu/cpu_device.h"
#include "turbo/delta_rule/delta_rule.h"

namespace primus::turbo::PRIMUS_CPU_ISA {

std::int64_t cached_delta_rule_workspace(cpu::CpuContext& context, const CachedDeltaRule& call);
void cached_delta_rule(cpu::CpuContext& context, const CachedDeltaRule& call);

}  // namespace primus::turbo::PRIMUS_CPU_ISA
