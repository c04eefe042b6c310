// Reads and writes the rotary position keys of a config.json, and finds keys without effect.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus {

// Reads rope_theta, partial_rotary_factor, and rope_scaling or rope_parameters into `config`, whose
// max_positions is already set. If rope_parameters has two branches (Family::rope_by_branch), the branches
// override the keys next to them, as in transformers, and set attention.pooled.theta. If rope_parameters has
// one object per layer type (Family::rope_by_layer_type), the object of local layers sets
// attention.local_theta.
void read_rope(const nlohmann::json& root, const std::string& where, const Family& family,
               ModelConfig& config);

// Writes the keys of read_rope(), both as transformers 4 and as transformers 5 spell them.
void write_rope(const ModelConfig& config, const Family& family, nlohmann::json& root);

// Returns a note if a file has both rope_scaling and rope_parameters, and values of rope_parameters are
// replaced by others, because rope_scaling takes precedence as in transformers. Otherwise, returns an empty
// string.
std::string note_on_two_rotations(const nlohmann::json& root, const Family& family);

// Returns the keys of rope_scaling or rope_parameters that have no effect on these rotations, such as
// "rope_parameters.mscale".
std::vector<std::string> unused_rope_keys(const nlohmann::json& root, const Family& family,
                                          const ModelConfig& config);

}  // namespace primus
