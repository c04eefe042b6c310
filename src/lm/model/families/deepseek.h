// Code shared by DeepSeek-V2, V3 and related models. They have latent attention. After the first dense layers
// they have mixtures of many small experts with shared experts. The models differ in how experts are scored
// and chosen.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "lm/model/blocks/layers.h"
#include "lm/model/family.h"

namespace primus::deepseek {

// Convert config.json to `config` and back, without the scoring of experts. Errors as Family::read's.
// read_parts() does not read hidden_act.
void read_parts(const nlohmann::json& json, ModelConfig& config);
void read_common(const nlohmann::json& json, ModelConfig& config);
// Reads the groups of experts; a token may choose experts only from the best groups. Call it after the group
// score is set.
void read_groups(const nlohmann::json& json, ModelConfig& config);
// Reads V3's scoring: sigmoids, a bias that affects only the choice of experts, and groups scored by their
// two best experts. Call this function after read_experts().
void read_sigmoid_scores(const nlohmann::json& json, ModelConfig& config);
void write_common(const ModelConfig& config, nlohmann::json& json);

// Reads only the experts, for families with other attention: their number, their widths, and which layers are
// dense.
void read_experts(const nlohmann::json& json, ModelConfig& config);
void write_experts(const ModelConfig& config, nlohmann::json& json);
// mlp.{gate, experts, shared_experts}, or in a dense layer mlp.{gate,up,down}_proj.
std::unique_ptr<Layer> feed_forward_or_experts(const ModelConfig& config, const BlockParameters& parameters);

std::unique_ptr<Block> make_block(const ModelConfig& config, engine::ParameterStore& store,
                                  std::int64_t layer, int chunk);

// Return values for the members of Family with these names.
std::vector<FamilySwitch> switches();
std::vector<std::string_view> other_keys();

}  // namespace primus::deepseek
