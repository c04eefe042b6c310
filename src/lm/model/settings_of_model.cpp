// From a model to an experiment's settings: the way back of model_settings.cpp, for models that are loaded.
#include <string>
#include <string_view>
#include <vector>

#include "config/experiment.h"
#include "lm/model/model_config.h"

namespace primus {
namespace {

// A list of one bit per layer, as window_attn_skip_freq and its kin have it; empty for `none`.
template <class Chosen>
std::vector<std::string> pattern(std::int64_t layers, bool none, Chosen chosen) {
  if (none) return {};
  std::string bits;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    bits += bits.empty() ? "[" : ",";
    bits += chosen(layer) ? '1' : '0';
  }
  return {bits + "]"};
}

class Filler {
 public:
  Filler(config::Experiment& experiment, const ModelConfig& model)
      : experiment_(experiment), t_(experiment.trainer), m_(model) {}

  void run() {
    shape();
    latent();
    attention();
    rope();
    experts();
    // What somebody did set may decide over what is derived, and now meets the model.
    config::derive(t_);
  }

 private:
  bool is_set(std::string_view key) const {
    return experiment_.provenance_of(key).layer > config::Layer::kDerived;
  }
  template <class Field, class T>
  void fill(std::string_view key, Field& field, const T& value) const {
    if (!is_set(key)) field = value;
  }

  void shape() {
    fill("model_type", t_.model_type, m_.family);
    fill("num_layers", t_.num_layers, m_.layers);
    fill("hidden_size", t_.hidden_size, m_.hidden);
    fill("ffn_hidden_size", t_.ffn_hidden_size, m_.ffn);
    fill("num_attention_heads", t_.num_attention_heads, m_.heads);
    fill("num_query_groups", t_.num_query_groups, m_.kv_heads);
    fill("kv_channels", t_.kv_channels, m_.head_dim);
    fill("max_position_embeddings", t_.max_position_embeddings, m_.max_positions);
    fill("norm_epsilon", t_.norm_epsilon, m_.norm_epsilon);
    fill("rotary_base", t_.rotary_base, m_.rope_theta);
    fill("rotary_percent", t_.rotary_percent, m_.rotary_fraction);
    fill("untie_embeddings_and_output_weights", t_.untie_embeddings_and_output_weights, !m_.tied_embeddings);
    fill("init_method_std", t_.init_method_std, m_.init_std);
  }

  void latent() {
    const LatentConfig& latent = m_.attention.latent;
    fill("multi_latent_attention", t_.multi_latent_attention, latent.kv_rank > 0);
    if (latent.kv_rank == 0) return;
    if (latent.q_rank > 0) fill("q_lora_rank", t_.q_lora_rank, latent.q_rank);
    fill("kv_lora_rank", t_.kv_lora_rank, latent.kv_rank);
    fill("qk_head_dim", t_.qk_head_dim, latent.nope_dim);
    fill("qk_pos_emb_head_dim", t_.qk_pos_emb_head_dim, latent.rope_dim);
    fill("v_head_dim", t_.v_head_dim, latent.value_dim);
  }

  void attention() {
    const AttentionConfig& a = m_.attention;
    if (a.window > 0 && !is_set("attention_chunk_size")) {
      fill("window_size", t_.window_size, std::vector<std::string>{std::to_string(a.window - 1), "0"});
      fill("window_attn_skip_freq", t_.window_attn_skip_freq,
           pattern(m_.layers, false, [&](std::int64_t layer) { return a.local(layer); }));
    }
    if (a.chunk > 0 && !is_set("window_size")) fill("attention_chunk_size", t_.attention_chunk_size, a.chunk);
    fill("no_rope_freq", t_.no_rope_freq,
         pattern(m_.layers, a.no_rope_layers.empty(), [&](std::int64_t layer) { return !a.rope(layer); }));
    fill("attention_temperature_floor", t_.attention_temperature_floor, a.floor_scale);
    fill("attention_temperature_scale", t_.attention_temperature_scale, a.attn_scale);
    fill("qk_l2_norm", t_.qk_l2_norm, a.head_norm);
  }

  void rope() {
    const RopeScaling& s = m_.rope_scaling;
    const bool kind_is_said =
        is_set("rope_scaling_type") || is_set("use_rope_scaling") || is_set("rope_type") ||
        is_set("position_embedding_type") ||
        (t_.multi_latent_attention && (is_set("rotary_scaling_factor") || is_set("rope_scaling_factor")));
    // Derived of an experiment that did not know its model: derive() does it anew.
    fill("rope_scaling_type", t_.rope_scaling_type, "");
    fill("rope_scaling_factor", t_.rope_scaling_factor, 0.0);
    fill("rotary_scaling_factor", t_.rotary_scaling_factor, 0.0);
    fill("original_max_position_embeddings", t_.original_max_position_embeddings, 0);
    fill("mscale", t_.mscale, std::nullopt);
    if (kind_is_said) return;
    t_.rope_scaling_type = name_of(s.kind);
    if (s.kind == RopeScaling::Kind::kNone) return;
    if (t_.multi_latent_attention) {
      fill("rotary_scaling_factor", t_.rotary_scaling_factor, s.factor);
    } else {
      fill("rope_scaling_factor", t_.rope_scaling_factor, s.factor);
    }
    fill("original_max_position_embeddings", t_.original_max_position_embeddings, s.original_max_positions);
    fill("rope_low_freq_factor", t_.rope_low_freq_factor, s.low_freq_factor);
    fill("rope_high_freq_factor", t_.rope_high_freq_factor, s.high_freq_factor);
    fill("beta_fast", t_.beta_fast, s.beta_fast);
    fill("beta_slow", t_.beta_slow, s.beta_slow);
    fill("mscale", t_.mscale, s.mscale);
    fill("mscale_all_dim", t_.mscale_all_dim, s.mscale_all_dim);
    fill("yarn_correction_range_round_to_int", t_.yarn_correction_range_round_to_int, s.truncate);
  }

  void experts() {
    const MoeConfig& moe = m_.moe;
    if (moe.experts == 0) return;
    const turbo::RouterRule& router = moe.router;
    fill("num_experts", t_.num_experts, moe.experts);
    fill("moe_ffn_hidden_size", t_.moe_ffn_hidden_size, moe.ffn);
    if (moe.shared_ffn > 0)
      fill("moe_shared_expert_intermediate_size", t_.moe_shared_expert_intermediate_size, moe.shared_ffn);
    fill("moe_layer_freq", t_.moe_layer_freq,
         pattern(m_.layers, moe.dense_layers.empty(), [&](std::int64_t layer) { return moe.routed(layer); }));
    fill("moe_router_topk", t_.moe_router_topk, router.top_k);
    fill("moe_router_num_groups", t_.moe_router_num_groups, router.groups);
    fill("moe_router_group_topk", t_.moe_router_group_topk, router.top_groups);
    fill("moe_router_topk_scaling_factor", t_.moe_router_topk_scaling_factor,
         static_cast<double>(router.scale));
    if (router.scoring == turbo::RouterRule::Scoring::kSoftmax)
      fill("moe_router_pre_softmax", t_.moe_router_pre_softmax, !router.normalise);
  }

  config::Experiment& experiment_;
  config::TrainerConfig& t_;
  const ModelConfig& m_;
};

}  // namespace

void fill_model_settings(config::Experiment& experiment, const ModelConfig& model) {
  Filler(experiment, model).run();
}

}  // namespace primus
