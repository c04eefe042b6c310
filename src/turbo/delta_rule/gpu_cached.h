#pragma once

#include "turbo/delta_rule/delta_rule.h"
#include "turbo/gpu/values.h"

namespace primus::turbo::PRIMUS_GPU {

void cached_delta_rule(Context& context, const CachedDeltaRule& call);
std::int64_t cached_delta_rule_workspace(Context& context, const CachedDeltaRule& call);

// Computes a call with `around`, in one kernel, if takes_delta_net_step() returns true.
void delta_net_step(Context& context, const CachedDeltaRule& call);
bool takes_delta_net_step(const Context& context, const CachedDeltaRule& call);

}  // namespace primus::turbo::PRIMUS_GPU
