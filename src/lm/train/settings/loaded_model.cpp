#include "lm/train/settings/loaded_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "config/stages.h"
#include "config/trainer_config.h"
#include "lm/model/model_fields.h"
#include "lm/model/stated_adapters.h"
#include "lm/train/objectives/objective.h"

namespace primus {
namespace {

using config::Layer;
using Keys = std::initializer_list<std::string_view>;
using Layers = std::vector<std::int64_t>;

template <class T>
std::string text_of(const T& value) {
  return fmt::format("{}", value);
}
std::string text_of(const std::optional<double>& value) { return value ? text_of(*value) : "nothing"; }
std::string text_of(const std::vector<double>& numbers) {
  return fmt::format("{}", fmt::join(numbers, ", "));
}
std::string text_of(const Layers& layers) {
  return layers.empty() ? "no layers" : fmt::format("layers {}", fmt::join(layers, ", "));
}

class Reconciliation {
 public:
  Reconciliation(const config::Experiment& experiment, const std::string& where)
      : experiment_(experiment), where_(where) {}

  // Compares a setting that determines the set of tensors or their shapes.
  template <class T>
  void shape(std::string_view key, const T& ours, const T& theirs) {
    if (ours == theirs || layer_of(key) <= Layer::kDerived) return;
    throw experiment_.error_for(key, difference({key}, ours, theirs),
                                "the architecture comes from these weights: remove the model preset and the "
                                "model's settings from the experiment (on the command line, leave out "
                                "--config), or repeat the model's settings");
  }

  // Compares a setting that must have the value with which the weights were trained.
  template <class T>
  void fixed(std::string_view key, const T& ours, const T& theirs) {
    if (ours == theirs || layer_of(key) <= Layer::kDerived) return;
    if (layer_of(key) >= Layer::kOverrides) {
      throw experiment_.error_for(key, difference({key}, ours, theirs),
                                  "omit it: the weights were trained with the settings of their config.json");
    }
    pass_over({key}, ours, theirs);
  }

  // Compares a setting that the user may change: `theirs` becomes `ours` if the user sets a key of the
  // setting. If several keys have the same meaning, the key from the strongest layer counts.
  template <class T>
  bool flexible(Keys keys, const T& ours, T& theirs) {
    if (ours == theirs || layer_of(strongest(keys)) <= Layer::kDerived) return false;
    if (layer_of(strongest(keys)) < Layer::kOverrides) {
      pass_over(keys, ours, theirs);
      return false;
    }
    notes_.push_back(difference(keys, ours, theirs) + ": the experiment's value is used");
    theirs = ours;
    return true;
  }

  void note(std::string sentence) { notes_.push_back(std::move(sentence)); }
  bool is_set(std::string_view key) const { return layer_of(key) >= Layer::kOverrides; }
  // Returns whether a preset or the experiment sets the key.
  bool is_stated(std::string_view key) const { return layer_of(key) > Layer::kDerived; }
  std::vector<std::string> take_notes() { return std::move(notes_); }

 private:
  // Returns whether the window that the key sets comes from Primus-Turbo's keys for windows with sinks.
  bool is_sink_window(std::string_view key) const {
    return (key == "window_size" || key == "window_attn_skip_freq") &&
           experiment_.trainer->use_sink_attention && experiment_.provenance_of(key).layer == Layer::kDerived;
  }
  Layer layer_of(std::string_view key) const {
    if (!is_sink_window(key)) return experiment_.provenance_of(key).layer;
    return std::max(layer_of("sink_sliding_window"), layer_of("sink_window_even_layers_only"));
  }
  std::string_view strongest(Keys keys) const {
    std::string_view best = *keys.begin();
    for (const std::string_view key : keys) {
      if (layer_of(key) > layer_of(best)) best = key;
    }
    return best;
  }
  template <class T>
  std::string difference(Keys keys, const T& ours, const T& theirs) const {
    const std::string_view key = *keys.begin();
    return fmt::format(
        "{} is {}, but {} has {}",
        is_sink_window(key) ? fmt::format("{} (by sink_sliding_window)", key) : std::string(key),
        text_of(ours), where_, text_of(theirs));
  }
  template <class T>
  void pass_over(Keys keys, const T& ours, const T& theirs) {
    notes_.push_back(fmt::format("{}, which is used ({} comes from a preset: {})",
                                 difference(keys, ours, theirs), text_of(ours),
                                 experiment_.provenance_of(strongest(keys)).describe()));
  }

  const config::Experiment& experiment_;
  const std::string& where_;
  std::vector<std::string> notes_;
};

// Reconciles each key separately. Ignores the kind of scaling that the experiment's keys would give without a
// loaded model.
void reconcile_rope(Reconciliation& r, const config::TrainerConfig& t, const ModelConfig& ours,
                    ModelConfig& model) {
  using Kind = RopeScaling::Kind;
  RopeScaling& scaling = model.rope_scaling;
  // If the experiment does not set the original context length, the length comes from the weights.
  const std::int64_t original =
      scaling.kind == Kind::kNone ? model.max_positions : scaling.original_max_positions;
  const std::string_view ours_kind = name_of(ours.rope_scaling.kind);
  std::string_view kind = name_of(scaling.kind);
  // In Megatron-LM, position_embedding_type is yarn only for yarn, and rope for all other kinds of scaling.
  // For latent attention, a scaling factor alone means yarn (config::derive).
  const bool latents = t.multi_latent_attention || !t.compress_ratios.empty();
  const bool changed =
      ours.rope_scaling.kind == Kind::kYarn && t.multi_latent_attention
          ? r.flexible({"rope_scaling_type", "rope_type", "position_embedding_type", "rotary_scaling_factor",
                        "rope_scaling_factor"},
                       ours_kind, kind)
      : ours.rope_scaling.kind == Kind::kYarn
          ? r.flexible({"rope_scaling_type", "rope_type", "position_embedding_type"}, ours_kind, kind)
          : r.flexible({"rope_scaling_type", "use_rope_scaling", "rope_type"}, ours_kind, kind);
  if (changed) {
    scaling = ours.rope_scaling;
    if (!r.is_set("original_max_position_embeddings")) scaling.original_max_positions = original;
    return;
  }
  if (scaling.kind == Kind::kNone) return;
  if (scaling.kind == Kind::kYarn && ours.rope_scaling.kind != Kind::kYarn &&
      r.is_set("position_embedding_type")) {
    r.note(
        "position_embedding_type is rope, but the weights have yarn, which is used (rope_scaling_type: none "
        "disables it)");
  }
  if (latents) {
    r.flexible({"rotary_scaling_factor", "rope_scaling_factor"}, t.rotary_scaling_factor, scaling.factor);
  } else {
    r.flexible({"rope_scaling_factor"}, t.rope_scaling_factor, scaling.factor);
  }
  const auto has = [&](std::string_view setting) {
    if (setting == "original_max_position_embeddings") return scaling.kind != Kind::kLinear;
    return (scaling.kind == Kind::kLlama3) == setting.starts_with("rope_") && scaling.kind != Kind::kLinear &&
           scaling.kind != Kind::kLongrope;
  };
  if (scaling.kind == Kind::kLongrope && ours.rope_scaling.kind == Kind::kLongrope) {
    r.fixed("rope_short_factor", ours.rope_scaling.short_factor, scaling.short_factor);
    r.fixed("rope_long_factor", ours.rope_scaling.long_factor, scaling.long_factor);
  }
  ModelConfig said = model;  // settings that are null keep the model's values
  for_each_model_field([&](const auto& field) {
    if (field.part != ModelPart::kRope || !has(field.name)) return;
    field.read(t, said);
    r.flexible({field.name}, field.of(said), field.of(model));
  });
}

void compare_fields(Reconciliation& r, const ModelConfig& ours, const ModelConfig& theirs) {
  for_each_model_field([&](const auto& field) {
    if (field.when_loaded == WhenLoaded::kShape) r.shape(field.name, field.of(ours), field.of(theirs));
    if (field.when_loaded == WhenLoaded::kFixed) r.fixed(field.name, field.of(ours), field.of(theirs));
  });
}

void compare_attention(Reconciliation& r, const ModelConfig& our_model, const ModelConfig& their_model) {
  const AttentionConfig &ours = our_model.attention, &theirs = their_model.attention;
  r.fixed(our_model.any_keeps(Keeps::kPooled) ? "attn_sliding_window" : "window_size", ours.window,
          theirs.window);
  r.fixed("no_rope_freq", our_model.layers_without_rope(), their_model.layers_without_rope());
  r.shape("add_qkv_bias", ours.qkv_bias, theirs.qkv_bias);
  r.shape("qk_layernorm", ours.qk_norm, theirs.qk_norm);
  r.fixed(ours.chunk > 0 ? "attention_chunk_size" : "window_attn_skip_freq", our_model.local_layers(),
          their_model.local_layers());
}

void compare_experts(Reconciliation& r, const ModelConfig& our_model, const ModelConfig& their_model) {
  const MoeConfig &ours = our_model.moe, &theirs = their_model.moe;
  using Scoring = turbo::RouterRule::Scoring;
  r.shape("moe_layer_freq", fmt::format("dense in {}", text_of(our_model.dense_layers())),
          fmt::format("dense in {}", text_of(their_model.dense_layers())));
  const auto pre_softmax = [](const turbo::RouterRule& rule) {
    return rule.scoring == Scoring::kSoftmax && !rule.normalise;
  };
  r.fixed("moe_router_pre_softmax", pre_softmax(ours.router), pre_softmax(theirs.router));
  r.fixed("moe_router_enable_expert_bias", ours.choice_bias, theirs.choice_bias);
}

// Notes the losses of routers. For losses that the experiment does not set, fill_model_settings() has used
// the values in the file.
void note_router_losses(Reconciliation& r, const config::TrainerConfig& t, const MoeConfig::Training& ours,
                        const MoeConfig::Training& theirs, const std::string& where) {
  const auto compare = [&](std::string_view key, std::string_view loss, double our, double their,
                           std::string_view why_not) {
    if (their == 0) return;
    if (r.is_stated(key)) {
      if (our != their)
        r.note(fmt::format("{} is {}, but {} has {}: {} is used", key, our, where, their, our));
    } else if (our == their) {
      r.note(fmt::format("{} is trained with {} {}, as {} says ({}=0 turns it off)", loss, key, our, where,
                         key));
    } else {
      r.note(fmt::format("{} says {} {}, but {} is not trained{}", where, key, their, loss, why_not));
    }
  };
  compare("moe_aux_loss_coeff",
          fmt::format("the balance loss of experts ({})", t.moe_router_load_balancing_type),
          ours.balance_loss, theirs.balance_loss,
          t.moe_router_load_balancing_type == "none"
              ? ", because moe_router_load_balancing_type is none"
              : ": no published model of this family was trained with it, which is only a default of "
                "transformers (moe_aux_loss_coeff sets one)");
  compare("moe_z_loss_coeff", "the z-loss of routers", ours.z_loss, theirs.z_loss, "");
}

// The experiment determines whether multi-token prediction is trained. The weights determine the number of
// modules.
void reconcile_mtp(Reconciliation& r, const MtpConfig& ours, MtpConfig& theirs) {
  if (ours.enabled && theirs.layers > 0) {
    r.shape("mtp_num_layers", ours.layers, theirs.layers);
  } else if (ours.enabled) {
    // config.json may lack the number of modules; loading the weights detects a wrong number
    theirs.layers = ours.layers;
  } else if (theirs.layers > 0) {
    r.note(
        "config.json has num_nextn_predict_layers, and mtp_num_layers is not set: multi-token prediction is "
        "neither trained nor saved");
  }
  theirs.enabled = ours.enabled;
  theirs.training = ours.training;
}

// Throws if the loaded weights have adapters that the experiment does not train.
void refuse_other_adapters(const config::Experiment& experiment, const LoraConfig& ours,
                           const LoraConfig& loaded, const std::string& where) {
  LoraConfig adapters = loaded;
  adapters.training = ours.training;
  if (adapters && adapters != ours) {
    const std::string what =
        ours ? fmt::format("{} has LoRA adapters that differ from the lora settings", where)
             : fmt::format("{} has LoRA adapters, but lora is not enabled", where);
    using config::Material;
    const Material material = config::stage_of(experiment.trainer).material;
    const std::string overrides = adapter_overrides(adapters, ours);
    // A reference model is loaded without adapters. The hint for objectives with a reference model says so.
    const std::string hint =
        objective_of(experiment.trainer).trains_scores()
            ? "merge them into the weights first (primus model export): a reward model trains all weights"
        : material == Material::kPreferences || material == Material::kPrompts
            ? fmt::format(
                  "merge them into the weights first (primus model export), so that a reference model "
                  "has them, too; or, to train them further and compare with the model without them, "
                  "set {}",
                  overrides)
            : fmt::format(
                  "to train these adapters further, set {}; or merge them into the weights first: "
                  "primus model export",
                  overrides);
    throw ours ? experiment.error_for("lora", what, hint) : invalid(what, hint);
  }
}

}  // namespace

LoadedModel reconcile_with_loaded(const config::Experiment& experiment, const ModelConfig& ours,
                                  const ModelConfig& loaded, const std::string& where) {
  Reconciliation r(experiment, where);
  r.shape("model_type", ours.family, loaded.family);
  compare_fields(r, ours, loaded);
  const auto keeping = [](const char* layers, const ModelConfig& c, Keeps what) {
    return fmt::format("{} in {}", layers, text_of(c.layers_keeping(what)));
  };
  r.shape("lfm_layer_types", keeping("convolutions", ours, Keeps::kInputs),
          keeping("convolutions", loaded, Keeps::kInputs));
  r.shape("linear_attention_freq", keeping("linear attention", ours, Keeps::kState),
          keeping("linear attention", loaded, Keeps::kState));
  const auto pooled = [](const ModelConfig& c) {
    using Pools = LayerSpec::Pools;
    return fmt::format("latents of {} tokens in {}, and of {} in {}", c.attention.pooled.sparse_ratio,
                       text_of(c.layers_pooling(Pools::kSparse)), c.attention.pooled.heavy_ratio,
                       text_of(c.layers_pooling(Pools::kHeavy)));
  };
  r.shape("compress_ratios", pooled(ours), pooled(loaded));
  r.shape("hc_mult", ours.hyper.streams, loaded.hyper.streams);
  r.fixed("hc_sinkhorn_iters", ours.hyper.iterations, loaded.hyper.iterations);
  r.fixed("hc_eps", ours.hyper.epsilon, loaded.hyper.epsilon);
  if (ours.any_keeps(Keeps::kPooled)) {
    r.fixed("swiglu_limit", ours.moe.swiglu_limit, loaded.moe.swiglu_limit);
    r.fixed("qk_pos_emb_head_dim", ours.rotary_dim(), loaded.rotary_dim());
  }
  compare_experts(r, ours, loaded);
  compare_attention(r, ours, loaded);
  // Embedding rows beyond the vocabulary are padding, so the numbers of rows may differ.
  const std::int64_t vocab = experiment.trainer->vocab_size.value_or(0);
  if (vocab > loaded.vocab) r.fixed("vocab_size", vocab, loaded.vocab);
  if (r.is_set("make_vocab_size_divisible_by") && ours.vocab != loaded.vocab) {
    r.note(fmt::format("make_vocab_size_divisible_by has no effect: the weights have {} rows", loaded.vocab));
  }
  if (r.is_set("init_method_std") && ours.init_std != loaded.init_std) {
    r.note("init_method_std has no effect: the weights are loaded");
  }
  r.fixed("untie_embeddings_and_output_weights", !ours.tied_embeddings, !loaded.tied_embeddings);
  refuse_other_adapters(experiment, ours.lora, loaded.lora, where);
  LoadedModel result{.config = loaded, .notes = {}};
  result.config.lora = ours.lora;
  result.config.moe.training = ours.moe.training;
  note_router_losses(r, experiment.trainer, ours.moe.training, loaded.moe.training, where);
  reconcile_rope(r, experiment.trainer, ours, result.config);
  reconcile_mtp(r, ours.mtp, result.config.mtp);
  for_each_model_field([&](const auto& field) {
    if (field.when_loaded == WhenLoaded::kFlexible && field.part != ModelPart::kRope)
      r.flexible({field.name}, field.of(ours), field.of(result.config));
  });
  // A default length was already cut to the model's maximum (with_loaded_model).
  const std::int64_t length = experiment.trainer->seq_length;
  if (length > result.config.max_positions && r.is_set("seq_length") &&
      !r.is_set("max_position_embeddings")) {
    r.note(
        fmt::format("seq_length is {}, but {} was made for {} positions (max_position_embeddings): the "
                    "weights were not trained for later positions; saved models get {}",
                    length, where, result.config.max_positions, length));
    result.config.max_positions = length;
  }
  result.notes = r.take_notes();
  return result;
}

}  // namespace primus
