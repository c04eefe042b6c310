// Rotary positions in a config.json: how they are read, written, and which of their keys say nothing.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus {

// Reads rope_theta, partial_rotary_factor, and rope_scaling or rope_parameters into `config`, which has
// max_positions already. Where a family has two branches in rope_parameters (Family::rope_by_branch), they go
// before the keys beside them, as in transformers, and attention.pooled.theta is set from them. Where it
// has an object for each kind of layer (Family::rope_by_layer_type), attention.local_theta is.
void read_rope(const nlohmann::json& root, const std::string& where, const Family& family,
               ModelConfig& config);

// Writes the same keys, in the spellings of transformers 4 and 5.
void write_rope(const ModelConfig& config, const Family& family, nlohmann::json& root);

// Keys of rope_scaling or rope_parameters that say nothing for these rotations, such as
// "rope_parameters.mscale".
std::vector<std::string> unused_rope_keys(const nlohmann::json& root, const Family& family,
                                          const ModelConfig& config);

}  // namespace primus
