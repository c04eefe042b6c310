#pragma once

#include "turbo/delta_rule/delta_rule.h"
#include "turbo/gpu/values.h"

namespace primus::turbo::PRIMUS_GPU {

void cached_delta_rule(Context& context, const CachedDeltaRule& call);

}  // namespace primus::turbo::PRIMUS_GPU
