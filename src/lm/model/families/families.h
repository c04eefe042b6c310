// Helpers that several families use.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "lm/model/family.h"

namespace primus {

class ConfigReader;
struct SelfAttentionOptions;

// Llama's block: grouped-query attention with the layer's options in config.attention, and a SwiGLU
// feed-forward, each after a norm. As Family::make_block.
std::unique_ptr<Block> make_llama_block(const ModelConfig& config, engine::ParameterStore& store,
                                        std::int64_t layer, int chunk);
// The block with other options of attention.
std::unique_ptr<Block> make_llama_block_with(const ModelConfig& config, engine::ParameterStore& store,
                                             std::int64_t layer, int chunk,
                                             const SelfAttentionOptions& options);

// Throws Error(kUnsupported) naming `key` when config.json sets it to a value other than `neutral` (or null).
void refuse_unless(const nlohmann::json& json, const char* key, const nlohmann::json& neutral);

// Reads the number of experts from `key`, and the number of experts per token from num_experts_per_tok. Both
// numbers are required and must be in the range that routers support.
void read_expert_counts(const ConfigReader& reader, const char* key, ModelConfig& config);

// Returns the shortest decimal number that rounds to `value` as a float, so that a number is written in the
// form in which it was read.
double shortest(float value);

// Writes the rotated fraction of each head even if it is 1, for families with another default.
void write_rotary_fraction(const ModelConfig& config, nlohmann::json& json);

// Reads which layers are dense: the layers in mlp_only_layers, and all layers except every
// decoder_sparse_step-th.
void read_sparse_layers(const ConfigReader& reader, ModelConfig& config);

// Returns the names in config.json's `layer_types`, one per layer; each must be in `known`. Empty if
// config.json has no such list.
std::vector<std::string> read_layer_types(const nlohmann::json& json, const ModelConfig& config,
                                          const std::vector<std::string>& known);
// Marks as local the layers whose entry in config.json's `layer_types` is `local` ("sliding_attention").
// Without such a list, `otherwise` decides per layer.
void read_local_layers(const nlohmann::json& json, const char* local, ModelConfig& config,
                       bool (*otherwise)(const nlohmann::json& json, std::int64_t layer));
void write_layer_types(const ModelConfig& config, const char* local, nlohmann::json& json);

// Reads short convolutions: conv_L_cache, conv_bias, and the layers that are "conv" in `layer_types`. `local`
// is the family's other layer type besides full attention, or null. Call it before read_local_layers(), which
// then skips these layers; write_layer_types() writes them too.
void read_convolutions(const nlohmann::json& json, const char* local, ModelConfig& config);
void write_convolutions(const ModelConfig& config, nlohmann::json& json);

// Reads sliding_window in families whose windows apply to all layers; null: no layer has a window.
void read_common_window(const nlohmann::json& json, ModelConfig& config);
void write_common_window(const ModelConfig& config, nlohmann::json& json);

// Reads the layers without rotary positions: the layers with a zero in no_rope_layers, or every
// no_rope_layer_interval-th layer.
void read_layers_without_rope(const ConfigReader& reader, ModelConfig& config);
void write_layers_without_rope(const ModelConfig& config, nlohmann::json& json);

// Reads Qwen's keys for sliding windows: use_sliding_window, sliding_window, max_window_layers, layer_types.
void read_sliding_layers(const nlohmann::json& json, ModelConfig& config);
void write_sliding_layers(const ModelConfig& config, nlohmann::json& json);

}  // namespace primus
