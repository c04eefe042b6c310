// Megatron-LM's switches for what a family says already.
#pragma once

#include <string_view>
#include <vector>

#include "lm/model/family.h"

namespace primus {

// All of these switches, with what they are in the family.
std::vector<FamilySwitch> switches_of(const Family& family);
// Whether the family has no one answer to a switch.
bool leaves_open(const Family& family, std::string_view key);
// Kimi's have latent attention whatever the switch says, which Primus's presets set to false.
bool always_latent(const Family& family);

}  // namespace primus
