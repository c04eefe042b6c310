// Fills an experiment's settings from a loaded model: the reverse of model_settings.cpp.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "config/experiment.h"
#include "config/trainer_config.h"
#include "lm/model/layer_kind.h"
#include "lm/model/model_config.h"
#include "lm/model/model_fields.h"

namespace primus {
namespace {

std::vector<std::string> texts(const std::vector<double>& numbers) {
  std::vector<std::string> words;
  for (const double number : numbers) words.push_back(fmt::format("{}", number));
  return words;
}

class Filler {
 public:
  Filler(config::Experiment& experiment, const ModelConfig& model)
      : experiment_(experiment), t_(experiment.trainer), m_(model) {}

  void run() {
    fill("model_type", t_.model_type, m_.family);
    fill("untie_embeddings_and_output_weights", t_.untie_embeddings_and_output_weights, !m_.tied_embeddings);
    fill("multi_latent_attention", t_.multi_latent_attention, m_.any_keeps(Keeps::kLatents));
    if (m_.attention.indexer.heads > 0)
      fill("experimental_attention_variant", t_.experimental_attention_variant, "dsa");
    for_each_model_field([&](const auto& field) {
      if (!is_set(field.name) && has(field)) field.write(m_, t_);
    });
    attention();
    convolutions();
    compressed();
    rope();
    experts();
    // Explicit settings, combined with the model's values, may change derived settings.
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

  // Returns whether the field applies to this model and no explicit setting replaces it.
  template <class Field>
  bool has(const Field& field) const {
    switch (field.part) {
      case ModelPart::kLatent:
        return m_.any_keeps(Keeps::kLatents);
      case ModelPart::kPooled:
        return m_.any_keeps(Keeps::kPooled);
      case ModelPart::kConvolution:
        return m_.any_keeps(Keeps::kInputs);
      case ModelPart::kLinear:
        return m_.any_keeps(Keeps::kState);
      case ModelPart::kIndexer:
        return m_.attention.indexer.heads > 0;
      case ModelPart::kMoe:
      case ModelPart::kRouter:
        return m_.moe.experts > 0;
      case ModelPart::kRope:
        return false;              // rope() handles this field
      case ModelPart::kAttention:  // windows and chunks exclude each other
        return field.name != "attention_chunk_size" || !is_set("window_size");
      case ModelPart::kModel:
        break;
    }
    return true;
  }

  // Returns a list with one bit per layer, as in window_attn_skip_freq and similar settings.
  std::vector<std::string> pattern(const std::vector<std::int64_t>& chosen) const {
    std::string bits;
    for (std::int64_t layer = 0; layer < m_.layers; ++layer) {
      bits += bits.empty() ? "[" : ",";
      bits += std::binary_search(chosen.begin(), chosen.end(), layer) ? '1' : '0';
    }
    return {bits + "]"};
  }
  std::vector<std::string> pattern_or_none(const std::vector<std::int64_t>& chosen) const {
    return chosen.empty() ? std::vector<std::string>() : pattern(chosen);
  }

  void attention() {
    const AttentionConfig& a = m_.attention;
    if (a.window > 0 && !m_.any_keeps(Keeps::kPooled) && !is_set("attention_chunk_size")) {
      fill("window_size", t_.window_size, std::vector<std::string>{std::to_string(a.window - 1), "0"});
      fill("window_attn_skip_freq", t_.window_attn_skip_freq, pattern(m_.local_layers()));
    }
    // Only some families let a model choose these switches. In the other families, the members are false.
    if (a.qkv_bias) fill("add_qkv_bias", t_.add_qkv_bias, true);
    if (a.qk_norm) fill("qk_layernorm", t_.qk_layernorm, true);
    fill("no_rope_freq", t_.no_rope_freq, pattern_or_none(m_.layers_without_rope()));
  }

  void convolutions() {
    std::vector<std::string> types;
    const bool convolves = m_.any_keeps(Keeps::kInputs);
    for (std::int64_t layer = 0; layer < m_.layers && convolves; ++layer)
      types.emplace_back(m_.convolves(layer) ? "conv" : "full_attention");
    fill("lfm_layer_types", t_.lfm_layer_types, types);
    fill("linear_attention_freq", t_.linear_attention_freq,
         pattern_or_none(m_.layers_keeping(Keeps::kState)));
  }

  void compressed() {
    using Pools = LayerSpec::Pools;
    const AttentionConfig& a = m_.attention;
    if (!m_.any_keeps(Keeps::kPooled)) return;
    std::vector<std::string> ratios;
    for (std::int64_t layer = 0; layer < m_.layers; ++layer) {
      const Pools what = m_.pools(layer);
      ratios.emplace_back(what == Pools::kSparse ? "4" : what == Pools::kHeavy ? "128" : "0");
    }
    fill("compress_ratios", t_.compress_ratios, ratios);
    fill("attn_sliding_window", t_.attn_sliding_window, a.window);
    fill("q_lora_rank", t_.q_lora_rank, a.latent.q_rank);
    fill("qk_pos_emb_head_dim", t_.qk_pos_emb_head_dim, m_.rotary_dim());
    fill("hc_mult", t_.hc_mult, m_.hyper.streams);
    fill("hc_sinkhorn_iters", t_.hc_sinkhorn_iters, m_.hyper.iterations);
    fill("hc_eps", t_.hc_eps, m_.hyper.epsilon);
    fill("swiglu_limit", t_.swiglu_limit, m_.moe.swiglu_limit);
  }

  void rope() {
    const RopeScaling& s = m_.rope_scaling;
    const bool kind_is_said = is_set("rope_scaling_type") || is_set("use_rope_scaling") ||
                              is_set("rope_type") || is_set("position_embedding_type") ||
                              ((t_.multi_latent_attention || m_.any_keeps(Keeps::kPooled)) &&
                               (is_set("rotary_scaling_factor") || is_set("rope_scaling_factor")));
    // These settings were derived before the model was known. The settings are reset here, so that derive()
    // computes new values.
    fill("rope_scaling_type", t_.rope_scaling_type, "");
    fill("rope_scaling_factor", t_.rope_scaling_factor, 0.0);
    fill("rotary_scaling_factor", t_.rotary_scaling_factor, 0.0);
    fill("original_max_position_embeddings", t_.original_max_position_embeddings, 0);
    fill("mscale", t_.mscale, std::nullopt);
    if (kind_is_said) return;
    t_.rope_scaling_type = name_of(s.kind);
    if (s.kind == RopeScaling::Kind::kNone) return;
    if (t_.multi_latent_attention || m_.any_keeps(Keeps::kPooled)) {
      fill("rotary_scaling_factor", t_.rotary_scaling_factor, s.factor);
    } else {
      fill("rope_scaling_factor", t_.rope_scaling_factor, s.factor);
    }
    for_each_model_field([&](const auto& field) {
      if (field.part == ModelPart::kRope && !is_set(field.name)) field.write(m_, t_);
    });
    fill("rope_short_factor", t_.rope_short_factor, texts(s.short_factor));
    fill("rope_long_factor", t_.rope_long_factor, texts(s.long_factor));
  }

  void experts() {
    const MoeConfig& moe = m_.moe;
    if (moe.experts == 0) return;
    fill("moe_layer_freq", t_.moe_layer_freq,
         m_.dense_layers().empty()
             ? std::vector<std::string>()
             : pattern(m_.layers_where([](const LayerSpec& spec) { return spec.feed_forward->routes; })));
    fill("moe_router_enable_expert_bias", t_.moe_router_enable_expert_bias, moe.choice_bias);
    if (moe.router.scoring == turbo::RouterRule::Scoring::kSoftmax)
      fill("moe_router_pre_softmax", t_.moe_router_pre_softmax, !moe.router.normalise);
    // gpt-oss's config.json contains the default of transformers, but no published model was trained with
    // this value, so it is ignored.
    constexpr double kDefaultOfGptOss = 0.9;
    const bool balanced = m_.family != "gpt_oss" || moe.training.balance_loss != kDefaultOfGptOss;
    fill("moe_aux_loss_coeff", t_.moe_aux_loss_coeff, balanced ? moe.training.balance_loss : 0);
    if (balanced && moe.training.balance_loss != 0 && moe.training.balance_sequences)
      fill("moe_router_load_balancing_type", t_.moe_router_load_balancing_type, "seq_aux_loss");
    if (moe.training.z_loss != 0) fill("moe_z_loss_coeff", t_.moe_z_loss_coeff, moe.training.z_loss);
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
