// Megatron-LM's switches for what a family says already.
#pragma once

#include <vector>

#include "lm/model/family.h"

namespace primus {

// All of these switches, with what they are in the family.
std::vector<FamilySwitch> switches_of(const Family& family);

}  // namespace primus
