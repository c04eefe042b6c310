// Switches of Megatron-LM whose values follow from the family.
#pragma once

#include <string_view>
#include <vector>

#include "lm/model/family.h"

namespace primus {

// Returns all switches with their values in this family.
std::vector<FamilySwitch> switches_of(const Family& family);
// Returns whether the family ignores this switch.
bool leaves_open(const Family& family, std::string_view key);
// Returns whether the family always has latent attention, even if multi_latent_attention is false. True for
// Kimi, because AMD Primus's presets of Kimi set that key to false.
bool always_latent(const Family& family);

}  // namespace primus
