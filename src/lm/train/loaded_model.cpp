#include "lm/train/loaded_model.h"

#include <fmt/format.h>

#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace primus {
namespace {

using config::Layer;
using Keys = std::initializer_list<std::string_view>;

class Reconciliation {
 public:
  Reconciliation(const config::Experiment& experiment, const std::string& where)
      : experiment_(experiment), where_(where) {}

  // What decides which tensors there are.
  template <class T>
  void shape(std::string_view key, const T& ours, const T& theirs) {
    if (ours == theirs || layer_of(key) <= Layer::kDerived) return;
    throw experiment_.error_for(key, difference({key}, ours, theirs),
                                "name the model preset of these weights");
  }

  // What the weights were trained with, and do not work without.
  template <class T>
  void fixed(std::string_view key, const T& ours, const T& theirs) {
    if (ours == theirs || layer_of(key) <= Layer::kDerived) return;
    if (layer_of(key) >= Layer::kOverrides) {
      throw experiment_.error_for(key, difference({key}, ours, theirs),
                                  "leave it out: the weights were trained with what their config.json says");
    }
    pass_over({key}, ours, theirs);
  }

  // What may be stretched: `theirs` becomes `ours` where the user says so. Of several keys that say the same,
  // the strongest counts.
  template <class T>
  bool flexible(Keys keys, const T& ours, T& theirs) {
    if (ours == theirs || layer_of(strongest(keys)) <= Layer::kDerived) return false;
    if (layer_of(strongest(keys)) < Layer::kOverrides) {
      pass_over(keys, ours, theirs);
      return false;
    }
    notes_.push_back(difference(keys, ours, theirs) + ": the experiment's is taken");
    theirs = ours;
    return true;
  }

  void note(std::string sentence) { notes_.push_back(std::move(sentence)); }
  bool is_set(std::string_view key) const { return layer_of(key) >= Layer::kOverrides; }
  std::vector<std::string> take_notes() { return std::move(notes_); }

 private:
  Layer layer_of(std::string_view key) const { return experiment_.provenance_of(key).layer; }
  std::string_view strongest(Keys keys) const {
    std::string_view best = *keys.begin();
    for (const std::string_view key : keys) {
      if (layer_of(key) > layer_of(best)) best = key;
    }
    return best;
  }
  template <class T>
  std::string difference(Keys keys, const T& ours, const T& theirs) const {
    return fmt::format("{} is {}, and {} says {}", *keys.begin(), ours, where_, theirs);
  }
  template <class T>
  void pass_over(Keys keys, const T& ours, const T& theirs) {
    notes_.push_back(fmt::format("{}, which is taken ({} is what a preset says: {})",
                                 difference(keys, ours, theirs), ours,
                                 experiment_.provenance_of(strongest(keys)).describe()));
  }

  const config::Experiment& experiment_;
  const std::string& where_;
  std::vector<std::string> notes_;
};

std::string list(const std::vector<std::int64_t>& layers) {
  return fmt::format("layers [{}]", fmt::join(layers, ", "));
}

void reconcile_rope(Reconciliation& r, const ModelConfig& ours, ModelConfig& model) {
  using Kind = RopeScaling::Kind;
  r.flexible({"rotary_base"}, ours.rope_theta, model.rope_theta);
  RopeScaling& scaling = model.rope_scaling;
  // Where the experiment does not say how long the context was, the weights do.
  const std::int64_t original =
      scaling.kind == Kind::kNone ? model.max_positions : scaling.original_max_positions;
  std::string_view kind = name_of(scaling.kind);
  if (r.flexible({"rope_scaling_type", "use_rope_scaling"}, name_of(ours.rope_scaling.kind), kind)) {
    scaling = ours.rope_scaling;
    if (!r.is_set("original_max_position_embeddings")) scaling.original_max_positions = original;
    return;
  }
  if (scaling.kind != ours.rope_scaling.kind || scaling.kind == Kind::kNone) return;
  r.flexible({"rope_scaling_factor"}, ours.rope_scaling.factor, scaling.factor);
  if (scaling.kind != Kind::kLinear) {
    r.flexible({"original_max_position_embeddings"}, ours.rope_scaling.original_max_positions,
               scaling.original_max_positions);
  }
  if (scaling.kind == Kind::kLlama3) {
    r.flexible({"rope_low_freq_factor"}, ours.rope_scaling.low_freq_factor, scaling.low_freq_factor);
    r.flexible({"rope_high_freq_factor"}, ours.rope_scaling.high_freq_factor, scaling.high_freq_factor);
  }
  if (scaling.kind == Kind::kYarn) {
    r.flexible({"beta_fast"}, ours.rope_scaling.beta_fast, scaling.beta_fast);
    r.flexible({"beta_slow"}, ours.rope_scaling.beta_slow, scaling.beta_slow);
    r.flexible({"yarn_correction_range_round_to_int"}, ours.rope_scaling.truncate, scaling.truncate);
    // 0 does what none does. Where the experiment has none, config.json's counts.
    const auto amplitude = [&](std::string_view key, std::optional<double> said, std::optional<double>& has) {
      double value = has.value_or(0);
      if (said && r.flexible({key}, *said, value)) has = value;
    };
    amplitude("mscale", ours.rope_scaling.mscale, scaling.mscale);
    amplitude("mscale_all_dim", ours.rope_scaling.mscale_all_dim, scaling.mscale_all_dim);
  }
}

// Whether multi-token prediction is trained is the run's to say; how much of it there is, the weights know.
void reconcile_mtp(Reconciliation& r, const MtpConfig& ours, MtpConfig& theirs) {
  if (ours.enabled && theirs.layers > 0) {
    r.shape("mtp_num_layers", ours.layers, theirs.layers);
  } else if (ours.enabled) {
    theirs.layers = ours.layers;  // perhaps config.json does not say; the weights are the proof
  } else if (theirs.layers > 0) {
    r.note(
        "config.json has num_nextn_predict_layers, and mtp_num_layers is not set: multi-token prediction is "
        "neither trained nor saved");
  }
  theirs.enabled = ours.enabled;
  theirs.training = ours.training;
}

}  // namespace

LoadedModel reconcile_with_loaded(const config::Experiment& experiment, const ModelConfig& ours,
                                  const ModelConfig& loaded, const std::string& where) {
  Reconciliation r(experiment, where);
  r.shape("model_type", ours.family, loaded.family);
  r.shape("num_layers", ours.layers, loaded.layers);
  r.shape("hidden_size", ours.hidden, loaded.hidden);
  r.shape("ffn_hidden_size", ours.ffn, loaded.ffn);
  r.shape("num_attention_heads", ours.heads, loaded.heads);
  r.shape("num_query_groups", ours.kv_heads, loaded.kv_heads);
  r.shape("kv_channels", ours.head_dim, loaded.head_dim);
  const MoeConfig &moe = ours.moe, &their_moe = loaded.moe;
  r.shape("num_experts", moe.experts, their_moe.experts);
  r.shape("moe_ffn_hidden_size", moe.ffn, their_moe.ffn);
  r.shape("moe_shared_expert_intermediate_size", moe.shared_ffn, their_moe.shared_ffn);
  r.shape("moe_layer_freq", "dense in " + list(moe.dense_layers), "dense in " + list(their_moe.dense_layers));
  const LatentConfig &latent = ours.attention.latent, &their_latent = loaded.attention.latent;
  r.shape("q_lora_rank", latent.q_rank, their_latent.q_rank);
  r.shape("kv_lora_rank", latent.kv_rank, their_latent.kv_rank);
  r.shape("qk_head_dim", latent.nope_dim, their_latent.nope_dim);
  r.shape("qk_pos_emb_head_dim", latent.rope_dim, their_latent.rope_dim);
  r.shape("v_head_dim", latent.value_dim, their_latent.value_dim);
  // Rows of the embedding beyond the vocabulary are padding, of which either may have more.
  const std::int64_t vocab = experiment.trainer.vocab_size.value_or(0);
  if (vocab > loaded.vocab) r.fixed("vocab_size", vocab, loaded.vocab);
  r.fixed("norm_epsilon", ours.norm_epsilon, loaded.norm_epsilon);
  r.fixed("untie_embeddings_and_output_weights", !ours.tied_embeddings, !loaded.tied_embeddings);
  r.fixed("rotary_percent", ours.rotary_fraction, loaded.rotary_fraction);
  const turbo::RouterRule &router = moe.router, &their_router = their_moe.router;
  r.fixed("moe_router_topk", router.top_k, their_router.top_k);
  r.fixed("moe_router_num_groups", router.groups, their_router.groups);
  r.fixed("moe_router_group_topk", router.top_groups, their_router.top_groups);
  r.fixed("moe_router_topk_scaling_factor", router.scale, their_router.scale);
  r.fixed("moe_router_pre_softmax", !router.normalise, !their_router.normalise);
  const AttentionConfig &attention = ours.attention, &their_attention = loaded.attention;
  r.fixed("attention_chunk_size", attention.chunk, their_attention.chunk);
  r.fixed("window_size", attention.window, their_attention.window);
  r.fixed("window_attn_skip_freq", list(attention.local_layers), list(their_attention.local_layers));
  r.fixed("no_rope_freq", list(attention.no_rope_layers), list(their_attention.no_rope_layers));
  r.fixed("attention_temperature_scale", attention.attn_scale, their_attention.attn_scale);
  r.fixed("attention_temperature_floor", attention.floor_scale, their_attention.floor_scale);
  r.fixed("qk_l2_norm", attention.head_norm, their_attention.head_norm);
  LoadedModel result{.config = loaded, .notes = {}};
  result.config.moe.training = moe.training;  // how to train is the experiment's alone
  reconcile_rope(r, ours, result.config);
  reconcile_mtp(r, ours.mtp, result.config.mtp);
  r.flexible({"max_position_embeddings"}, ours.max_positions, result.config.max_positions);
  result.notes = r.take_notes();
  return result;
}

}  // namespace primus
