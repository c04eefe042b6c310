// The keys of a config.json that Primus handles: keys that it reads, keys that it refuses, and keys that do
// not affect what a model computes.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus {

// Returns the unknown keys of `config`, sorted, without keys whose value is null. `written` is the
// config.json that Primus writes for the same model. All keys of `written` count as known.
std::vector<std::string> unknown_keys(const nlohmann::json& config, const nlohmann::json& written,
                                      const Family& family);

// Returns the keys of rope_scaling or rope_parameters that have no effect for this kind of rotation.
std::vector<std::string> unknown_rope_keys(const nlohmann::json& rope, RopeScaling::Kind kind);

}  // namespace primus
