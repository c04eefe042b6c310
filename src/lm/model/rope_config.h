// Reads and writes the keys of a config.json for rotary positions, and finds keys without effect.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus {

// Reads rope_theta, partial_rotary_factor, and rope_scaling or rope_parameters into `config`, whose
// max_positions must already be set. If rope_parameters has two objects by branch (Family::rope_by_branch),
// these objects override the other keys of rope_parameters, as in transformers. The objects also set
// attention.pooled.theta. If rope_parameters has one object per layer type (Family::rope_by_layer_type), the
// object of local layers sets attention.local_theta.
void read_rope(const nlohmann::json& root, const std::string& where, const Family& family,
               ModelConfig& config);

// Writes the keys that read_rope() reads, in the spelling of transformers 4 and in the spelling of
// transformers 5.
void write_rope(const ModelConfig& config, const Family& family, nlohmann::json& root);

// Returns a note if rope_scaling overrides values in the rope_parameters of the same file; otherwise returns
// "". rope_scaling takes precedence, as in transformers.
std::string note_on_two_rotations(const nlohmann::json& root, const Family& family);

// Returns the keys of rope_scaling or rope_parameters that have no effect for this model's kinds of rotation,
// such as "rope_parameters.mscale".
std::vector<std::string> unused_rope_keys(const nlohmann::json& root, const Family& family,
                                          const ModelConfig& config);

}  // namespace primus
