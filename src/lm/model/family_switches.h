// Megatron-LM's switches whose value follows from the family.
#pragma once

#include <string_view>
#include <vector>

#include "lm/model/family.h"

namespace primus {

// Returns all switches, each with its value in this family.
std::vector<FamilySwitch> switches_of(const Family& family);
// Whether the family ignores this switch.
bool leaves_open(const Family& family, std::string_view key);
// Whether the family has latent attention for every value of multi_latent_attention. True for Kimi, although
// AMD Primus's presets of Kimi set the key to false.
bool always_latent(const Family& family);

}  // namespace primus
