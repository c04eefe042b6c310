// Helpers that several families use.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "lm/model/family.h"

namespace primus {

class ConfigReader;
struct SelfAttentionOptions;

// Makes Llama's block: grouped-query attention with the layer's options in config.attention, and a SwiGLU
// feed-forward branch. A norm precedes each branch. Parameters: as for Family::make_block.
std::unique_ptr<Block> make_llama_block(const ModelConfig& config, engine::ParameterStore& store,
                                        std::int64_t layer, int chunk);
// Makes Llama's block with the given attention options.
std::unique_ptr<Block> make_llama_block_with(const ModelConfig& config, engine::ParameterStore& store,
                                             std::int64_t layer, int chunk,
                                             const SelfAttentionOptions& options);

// Throws Error(kUnsupported), which names `key`, if config.json sets the key to a value other than `neutral`
// or null.
void refuse_unless(const nlohmann::json& json, const char* key, const nlohmann::json& neutral);

// Reads the number of experts from `key`, and the number of experts per token from num_experts_per_tok. Both
// numbers are required and must be in the range that routers support.
void read_expert_counts(const ConfigReader& reader, const char* key, ModelConfig& config);

// Returns the shortest decimal number that rounds to `value` as a float. A number from a file is therefore
// written as it was read.
double shortest(float value);

// Writes the rotated fraction of each head, even if the fraction is 1. Used by families whose default is not
// 1.
void write_rotary_fraction(const ModelConfig& config, nlohmann::json& json);

// Reads which layers are dense. A layer is dense if mlp_only_layers lists it, or if its number is not a
// multiple of decoder_sparse_step.
void read_sparse_layers(const ConfigReader& reader, ModelConfig& config);

// Returns the layer names in config.json's `layer_types`, one per layer. Each name must be in `known`. Empty
// if config.json has no such list.
std::vector<std::string> read_layer_types(const nlohmann::json& json, const ModelConfig& config,
                                          const std::vector<std::string>& known);
// Marks a layer as local if its entry in config.json's `layer_types` is `local` ("sliding_attention"). If
// config.json has no such list, a layer is local if `otherwise` returns true for it.
void read_local_layers(const nlohmann::json& json, const char* local, ModelConfig& config,
                       bool (*otherwise)(const nlohmann::json& json, std::int64_t layer));
void write_layer_types(const ModelConfig& config, const char* local, nlohmann::json& json);

// Reads short convolutions: conv_L_cache, conv_bias, and the layers that are "conv" in `layer_types`. `local`
// is the name of the family's third layer type, besides "conv" and full attention, or null. Call this
// function before read_local_layers(), which then skips the convolutions. write_layer_types() also writes the
// convolutions.
void read_convolutions(const nlohmann::json& json, const char* local, ModelConfig& config);
void write_convolutions(const ModelConfig& config, nlohmann::json& json);

// Reads sliding_window for families in which the window applies to all layers. If sliding_window is null, no
// layer has a window.
void read_common_window(const nlohmann::json& json, ModelConfig& config);
void write_common_window(const ModelConfig& config, nlohmann::json& json);

// Reads which layers have no rotary positions: layers with a 0 in no_rope_layers, or every
// no_rope_layer_interval-th layer.
void read_layers_without_rope(const ConfigReader& reader, ModelConfig& config);
void write_layers_without_rope(const ModelConfig& config, nlohmann::json& json);

// Reads Qwen's keys for sliding windows: use_sliding_window, sliding_window, max_window_layers, layer_types.
void read_sliding_layers(const nlohmann::json& json, ModelConfig& config);
void write_sliding_layers(const ModelConfig& config, nlohmann::json& json);

}  // namespace primus
