#include "lm/model/setting_names.h"

#include <algorithm>
#include <array>
#include <utility>

#include "config/trainer_config.h"
#include "lm/model/model_fields.h"

namespace primus {
namespace {

// Pairs of a key of config.json and a setting that determines the key. Pairs in model_fields.def are not
// repeated here. A key may have several lines; the line with the most probable setting comes first.
constexpr auto kOrigins = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"model_type", "model_type"},
    {"architectures", "model_type"},
    {"vocab_size", "vocab_size"},
    {"vocab_size", "tokenizer_model"},
    {"vocab_size", "make_vocab_size_divisible_by"},
    {"tie_word_embeddings", "untie_embeddings_and_output_weights"},
    {"num_nextn_predict_layers", "mtp_num_layers"},
    {"rope_type", "rope_scaling_type"},
    {"rope_type", "use_rope_scaling"},
    {"rope_type", "position_embedding_type"},
    {"factor", "rope_scaling_factor"},
    {"factor", "rotary_scaling_factor"},
    {"short_factor", "rope_short_factor"},
    {"long_factor", "rope_long_factor"},
    {"sliding_window", "window_size"},
    {"use_sliding_window", "window_size"},
    {"max_window_layers", "window_attn_skip_freq"},
    {"layer_types", "window_attn_skip_freq"},
    {"layer_types", "window_size"},
    {"layer_types", "attention_chunk_size"},
    {"layer_types", "lfm_layer_types"},
    {"layer_types", "compress_ratios"},
    {"compress_ratios", "compress_ratios"},
    {"sliding_window", "attn_sliding_window"},
    {"qk_rope_head_dim", "qk_pos_emb_head_dim"},
    {"hc_mult", "hc_mult"},
    {"hc_sinkhorn_iters", "hc_sinkhorn_iters"},
    {"hc_eps", "hc_eps"},
    {"swiglu_limit", "swiglu_limit"},
    {"layer_types", "linear_attention_freq"},
    {"full_attention_interval", "linear_attention_freq"},
    {"no_rope_layers", "no_rope_freq"},
    {"scoring_func", "moe_router_score_function"},
    {"use_expert_bias", "moe_router_enable_expert_bias"},
    {"first_k_dense_replace", "moe_layer_freq"},
    {"num_dense_layers", "moe_layer_freq"},
    {"mlp_only_layers", "moe_layer_freq"},
    {"moe_layers", "moe_layer_freq"},
    {"primus_lora", "lora"},
    {"norm_topk_prob", "moe_router_pre_softmax"},
});

// Returns whether the space-separated list `words` contains `word`.
bool contains_word(std::string_view words, std::string_view word) {
  while (!words.empty()) {
    const std::size_t end = std::min(words.find(' '), words.size());
    if (words.substr(0, end) == word) return true;
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return false;
}

}  // namespace

std::vector<std::string_view> settings_behind(std::string_view config_key) {
  std::vector<std::string_view> settings;
  for_each_model_field([&](const auto& field) {
    if (contains_word(field.config_keys, config_key)) settings.push_back(field.name);
  });
  for (const auto& [name, setting] : kOrigins) {
    if (name == config_key) settings.push_back(setting);
  }
  return settings;
}

}  // namespace primus
