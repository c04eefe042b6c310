// Code shared by DeepSeek-V2, V3 and related models. The models have latent attention. The first layers are
// dense; the others have mixtures of many small experts with shared experts. The models differ in how experts
// are scored and chosen.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "lm/model/blocks/layers.h"
#include "lm/model/family.h"

namespace primus::deepseek {

// Convert config.json to `config` and back, except for the scoring of experts. Errors: as Family::read.
// read_parts() does not read hidden_act.
void read_parts(const nlohmann::json& json, ModelConfig& config);
void read_common(const nlohmann::json& json, ModelConfig& config);
// Reads the groups of experts. A token may choose experts only from the groups with the highest scores. Call
// this function after setting the group score.
void read_groups(const nlohmann::json& json, ModelConfig& config);
// Reads V3's scoring: sigmoids, a bias that affects only the choice of experts, and group scores that are
// computed from the two best experts of a group. Call this function after read_experts().
void read_sigmoid_scores(const nlohmann::json& json, ModelConfig& config);
void write_common(const ModelConfig& config, nlohmann::json& json);

// Reads the number of experts, the widths of experts, and which layers are dense. For families whose
// attention is not latent attention.
void read_experts(const nlohmann::json& json, ModelConfig& config);
void write_experts(const ModelConfig& config, nlohmann::json& json);
// Makes the feed-forward branch: a mixture with the parameters mlp.{gate, experts, shared_experts}, or in a
// dense layer mlp.{gate,up,down}_proj.
std::unique_ptr<Layer> feed_forward_or_experts(const ModelConfig& config, const BlockParameters& parameters);

std::unique_ptr<Block> make_block(const ModelConfig& config, engine::ParameterStore& store,
                                  std::int64_t layer, int chunk);

// Return the values of the members of Family with the same names.
std::vector<FamilySwitch> switches();
std::vector<std::string_view> other_keys();

}  // namespace primus::deepseek
