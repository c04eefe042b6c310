// Which keys of a config.json Primus knows: those it reads or refuses, and those that have no say in what a
// model computes.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus {

// Keys of `config` that nobody knows, sorted; null says nothing and is passed over. `written` is what Primus
// writes for the same model: whatever it writes it also reads.
std::vector<std::string> unknown_keys(const nlohmann::json& config, const nlohmann::json& written,
                                      const Family& family);

// Keys of rope_scaling or rope_parameters that say nothing for rotations of this kind.
std::vector<std::string> unknown_rope_keys(const nlohmann::json& rope, RopeScaling::Kind kind);

}  // namespace primus
