// What DeepSeek-V2 and V3 share: latent attention, and from some layer on a mixture of many small experts
// beside shared ones. Models of their kind differ in how experts are scored and chosen.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "lm/model/blocks/layers.h"
#include "lm/model/family.h"

namespace primus::deepseek {

// config.json to `config` and back, without what is said of scores. Errors as Family::read's. The first
// leaves hidden_act alone.
void read_parts(const nlohmann::json& json, ModelConfig& config);
void read_common(const nlohmann::json& json, ModelConfig& config);
// Groups of experts of which only the best may be chosen. After the score of a group is known.
void read_groups(const nlohmann::json& json, ModelConfig& config);
// V3's scores: sigmoids, a bias for choosing alone, and groups that score as their two best. After
// read_experts().
void read_sigmoid_scores(const nlohmann::json& json, ModelConfig& config);
void write_common(const ModelConfig& config, nlohmann::json& json);

// The experts alone, for families with other attention: their numbers and widths, and which layers are dense.
void read_experts(const nlohmann::json& json, ModelConfig& config);
void write_experts(const ModelConfig& config, nlohmann::json& json);
// mlp.{gate, experts, shared_experts}, or in a dense layer mlp.{gate,up,down}_proj.
std::unique_ptr<Layer> feed_forward_or_experts(const ModelConfig& config, const BlockParameters& parameters);

std::unique_ptr<Block> make_block(const ModelConfig& config, engine::ParameterStore& store,
                                  std::int64_t layer, int chunk);

// Members of Family.
std::vector<FamilySwitch> switches();
std::vector<std::string_view> other_keys();

}  // namespace primus::deepseek
