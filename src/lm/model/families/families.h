// The built-in families, and what their files share.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "lm/model/family.h"

namespace primus {

class ConfigReader;

Family llama_family();
Family qwen2_family();
Family qwen3_family();
Family deepseek_v2_family();
Family deepseek_v3_family();
Family deepseek_v32_family();
Family glm_moe_dsa_family();
Family deepseek_v4_family();
Family mixtral_family();
Family qwen3_moe_family();
Family gpt_oss_family();
Family llama4_family();
Family lfm2_family();
Family lfm2_moe_family();
Family qwen3_next_family();
Family qwen3_5_family();
Family qwen3_5_moe_family();
Family kimi_linear_family();
Family kimi_k3_family();
Family primus_gpt_family();

// Throws Error(kUnsupported) naming `key` when config.json sets it to anything but `neutral` (or null).
void refuse_unless(const nlohmann::json& json, const char* key, const nlohmann::json& neutral);

// The number of experts, which config.json has under `key`, and how many of them a token goes to
// (num_experts_per_tok): both must be there, and be what routers can do.
void read_expert_counts(const ConfigReader& reader, const char* key, ModelConfig& config);

// The number with the fewest digits that is `value` as a float: what was read into one is written as it was.
double shortest(float value);

// Which layers are dense: those of mlp_only_layers, and all but every decoder_sparse_step-th.
void read_sparse_layers(const ConfigReader& reader, ModelConfig& config);

// The names in config.json's `layer_types`, one for each layer, all of them among `known`; empty where there
// is no such list.
std::vector<std::string> read_layer_types(const nlohmann::json& json, const ModelConfig& config,
                                          const std::vector<std::string>& known);
// config.json's `layer_types`: sets config.attention.local_layers to those of type `local`
// ("sliding_attention"); where there is no such list, `otherwise` says which they are.
void read_local_layers(const nlohmann::json& json, const char* local, ModelConfig& config,
                       bool (*otherwise)(const nlohmann::json& json, std::int64_t layer));
void write_layer_types(const ModelConfig& config, const char* local, nlohmann::json& json);

// Short convolutions: conv_L_cache, conv_bias, and which layers `layer_types` says are "conv". `local`: the
// other kind of layer that the family has beside full attention, or null. Before read_local_layers(), which
// then passes them over; write_layer_types() writes them, too.
void read_convolutions(const nlohmann::json& json, const char* local, ModelConfig& config);
void write_convolutions(const ModelConfig& config, nlohmann::json& json);

// Qwen's keys: use_sliding_window, sliding_window, max_window_layers, layer_types.
void read_sliding_layers(const nlohmann::json& json, ModelConfig& config);
void write_sliding_layers(const ModelConfig& config, nlohmann::json& json);

}  // namespace primus
