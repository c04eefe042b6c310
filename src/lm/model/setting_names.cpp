#include "lm/model/setting_names.h"

#include <array>
#include <utility>

namespace primus {
namespace {

// Several lines for a key: the first is the likeliest.
constexpr auto kOrigins = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"model_type", "model_type"},
    {"architectures", "model_type"},
    {"num_hidden_layers", "num_layers"},
    {"hidden_size", "hidden_size"},
    {"intermediate_size", "ffn_hidden_size"},
    {"intermediate_size", "moe_ffn_hidden_size"},
    {"intermediate_size_mlp", "ffn_hidden_size"},
    {"num_attention_heads", "num_attention_heads"},
    {"num_key_value_heads", "num_query_groups"},
    {"head_dim", "kv_channels"},
    {"vocab_size", "vocab_size"},
    {"vocab_size", "tokenizer_model"},
    {"vocab_size", "make_vocab_size_divisible_by"},
    {"rms_norm_eps", "norm_epsilon"},
    {"tie_word_embeddings", "untie_embeddings_and_output_weights"},
    {"num_nextn_predict_layers", "mtp_num_layers"},
    {"rope_theta", "rotary_base"},
    {"partial_rotary_factor", "rotary_percent"},
    {"rope_type", "rope_scaling_type"},
    {"rope_type", "use_rope_scaling"},
    {"rope_type", "position_embedding_type"},
    {"factor", "rope_scaling_factor"},
    {"factor", "rotary_scaling_factor"},
    {"original_max_position_embeddings", "original_max_position_embeddings"},
    {"low_freq_factor", "rope_low_freq_factor"},
    {"high_freq_factor", "rope_high_freq_factor"},
    {"beta_fast", "beta_fast"},
    {"beta_slow", "beta_slow"},
    {"mscale", "mscale"},
    {"mscale_all_dim", "mscale_all_dim"},
    {"truncate", "yarn_correction_range_round_to_int"},
    {"sliding_window", "window_size"},
    {"use_sliding_window", "window_size"},
    {"max_window_layers", "window_attn_skip_freq"},
    {"layer_types", "window_attn_skip_freq"},
    {"layer_types", "window_size"},
    {"layer_types", "attention_chunk_size"},
    {"attention_chunk_size", "attention_chunk_size"},
    {"no_rope_layers", "no_rope_freq"},
    {"use_qk_norm", "qk_l2_norm"},
    {"attn_temperature_tuning", "attention_temperature_scale"},
    {"attn_scale", "attention_temperature_scale"},
    {"floor_scale", "attention_temperature_floor"},
    {"q_lora_rank", "q_lora_rank"},
    {"kv_lora_rank", "kv_lora_rank"},
    {"qk_nope_head_dim", "qk_head_dim"},
    {"qk_rope_head_dim", "qk_pos_emb_head_dim"},
    {"v_head_dim", "v_head_dim"},
    {"num_local_experts", "num_experts"},
    {"n_routed_experts", "num_experts"},
    {"num_experts", "num_experts"},
    {"num_experts_per_tok", "moe_router_topk"},
    {"experts_per_token", "moe_router_topk"},
    {"moe_intermediate_size", "moe_ffn_hidden_size"},
    {"n_shared_experts", "moe_shared_expert_intermediate_size"},
    {"shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"},
    {"scoring_func", "moe_router_score_function"},
    {"use_expert_bias", "moe_router_enable_expert_bias"},
    {"first_k_dense_replace", "moe_layer_freq"},
    {"mlp_only_layers", "moe_layer_freq"},
    {"moe_layers", "moe_layer_freq"},
    {"n_group", "moe_router_num_groups"},
    {"topk_method", "moe_router_num_groups"},
    {"topk_group", "moe_router_group_topk"},
    {"routed_scaling_factor", "moe_router_topk_scaling_factor"},
    {"norm_topk_prob", "moe_router_pre_softmax"},
});

}  // namespace

std::vector<std::string_view> settings_behind(std::string_view config_key) {
  std::vector<std::string_view> settings;
  for (const auto& [name, setting] : kOrigins) {
    if (name == config_key) settings.push_back(setting);
  }
  return settings;
}

}  // namespace primus
