// Helpers that several families use.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "lm/model/family.h"

namespace primus {

class ConfigReader;

// Llama's block: norms before grouped-query attention, with what config.attention says of the layer, and
// before a SwiGLU feed-forward. As Family::make_block.
std::unique_ptr<Block> make_llama_block(const ModelConfig& config, engine::ParameterStore& store,
                                        std::int64_t layer, int chunk);

// Throws Error(kUnsupported) naming `key` when config.json sets it to anything but `neutral` (or null).
void refuse_unless(const nlohmann::json& json, const char* key, const nlohmann::json& neutral);

// The number of experts, which config.json has under `key`, and how many of them a token goes to
// (num_experts_per_tok): both must be there, and be what routers can do.
void read_expert_counts(const ConfigReader& reader, const char* key, ModelConfig& config);

// The number with the fewest digits that is `value` as a float: what was read into one is written as it was.
double shortest(float value);

// Says which share of each head is rotated, although it may be all: families whose default is another one.
void write_rotary_fraction(const ModelConfig& config, nlohmann::json& json);

// Which layers are dense: those of mlp_only_layers, and all but every decoder_sparse_step-th.
void read_sparse_layers(const ConfigReader& reader, ModelConfig& config);

// The names in config.json's `layer_types`, one for each layer, all of them among `known`; empty where there
// is no such list.
std::vector<std::string> read_layer_types(const nlohmann::json& json, const ModelConfig& config,
                                          const std::vector<std::string>& known);
// config.json's `layer_types`: makes local those of type `local`
// ("sliding_attention"); where there is no such list, `otherwise` says which they are.
void read_local_layers(const nlohmann::json& json, const char* local, ModelConfig& config,
                       bool (*otherwise)(const nlohmann::json& json, std::int64_t layer));
void write_layer_types(const ModelConfig& config, const char* local, nlohmann::json& json);

// Short convolutions: conv_L_cache, conv_bias, and which layers `layer_types` says are "conv". `local`: the
// other kind of layer that the family has beside full attention, or null. Before read_local_layers(), which
// then passes them over; write_layer_types() writes them, too.
void read_convolutions(const nlohmann::json& json, const char* local, ModelConfig& config);
void write_convolutions(const ModelConfig& config, nlohmann::json& json);

// sliding_window of families in which all layers have the window; null: none has.
void read_common_window(const nlohmann::json& json, ModelConfig& config);
void write_common_window(const ModelConfig& config, nlohmann::json& json);

// Layers without rotary positions: those with a zero in no_rope_layers, or every no_rope_layer_interval-th.
void read_layers_without_rope(const ConfigReader& reader, ModelConfig& config);
void write_layers_without_rope(const ModelConfig& config, nlohmann::json& json);

// Qwen's keys: use_sliding_window, sliding_window, max_window_layers, layer_types.
void read_sliding_layers(const nlohmann::json& json, ModelConfig& config);
void write_sliding_layers(const ModelConfig& config, nlohmann::json& json);

}  // namespace primus
