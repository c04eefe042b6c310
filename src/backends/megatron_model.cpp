// The model as arguments of Megatron-LM.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "backends/megatron_arguments.h"
#include "config/keys.h"
#include "config/trainer_config.h"
#include "lm/model/family_switches.h"
#include "lm/model/model_config.h"

namespace primus::backends::megatron {

using config::Layer;
using config::Value;

namespace {

// Writes a pattern over layers as one word of Megatron-LM: "1", "([0]*3+[1]*58)", "[0,1,1]".
std::string pattern_word(const std::vector<std::string>& words) {
  if (words.size() == 1) return words[0];
  std::string text = fmt::format("{}", fmt::join(words, ","));
  std::erase(text, ' ');
  return text.starts_with('[') || text.starts_with('(') ? text : "[" + text + "]";
}

// Converts the layers of a hybrid model to a pattern of letters, one per layer. The length of the pattern
// sets the number of layers.
void state_space_layers(Megatron& m) {
  if (m.t.multi_latent_attention) {
    throw m.error_for("multi_latent_attention",
                      "Megatron-LM does not combine latent attention with state-space layers",
                      "choose another model");
  }
  for (const char* key : {"pipeline_model_parallel_layout", "num_layers_per_virtual_pipeline_stage",
                          "virtual_pipeline_model_parallel_size"}) {
    if (!m.arguments.contains(m.rules.renamed(key))) continue;
    throw m.error_for(key, fmt::format("Megatron-LM has no {} for state-space models", key),
                      fmt::format("remove {}", key));
  }
  if (m.arguments.contains("hybrid_override_pattern")) return;
  m.put_text("hybrid_layer_pattern", std::string(static_cast<std::size_t>(m.t.num_layers), 'M'));
  m.arguments.erase("num_layers");
}

// Refuses an experiment that sets no size of the model, such as one with a preset that other presets extend.
void require_shape(const Megatron& m) {
  for (const config::KeySpec& key : config::all_keys()) {
    const config::Value* const value = m.experiment.settings.find(key.name);
    if (!key.is_required || m.t.load || (value && !value->is_null())) continue;
    throw m.error_for(key.name, fmt::format("{} is missing", key.name),
                      fmt::format("choose a model preset with model: NAME.yaml, or set {}", key.name));
  }
}

}  // namespace

// Sets Megatron-LM's switches for properties that model_type implies.
void fill_family(Megatron& m) {
  if (m.t.model_type == "gpt" || m.is_mamba()) return;
  require_shape(m);
  const FamilyRegistry families = builtin_families();
  const ModelConfig model = model_config_of(m.experiment, m.t.vocab_size.value_or(kMockVocabulary), families);
  const Family& family = families.find(model.family);
  for (const FamilySwitch& common : switches_of(family)) {
    const std::string name = m.rules.renamed(common.key);
    const bool open = common.value == kEither || common.value == kChosen || common.value.empty();
    if (open || m.arguments.contains(name)) continue;
    if (common.key == "softmax_type" && m.t.use_sink_attention) continue;
    m.put(name, config::plain_scalar(common.value, {}));
  }
  // gpt-oss has its own gated activation, for which Megatron-LM has a separate argument.
  if (m.arguments.contains("quick_geglu") && m.arguments.at("quick_geglu").boolean)
    m.arguments.erase("swiglu");
  // Refuses chunks, unless a chunk is at least as long as the sequence and thus has no effect.
  if (model.attention.chunk > 0 && model.attention.chunk < m.t.seq_length) {
    throw m.error_for(
        m.is_set("attention_chunk_size") ? "attention_chunk_size" : "model_type",
        fmt::format("Megatron-LM has no chunked attention: a sequence of {} tokens does not fit into one "
                    "chunk of {} (attention_chunk_size)",
                    m.t.seq_length, model.attention.chunk),
        fmt::format("set seq_length to at most {}, or choose framework: native", model.attention.chunk));
  }
  if (model.moe.experts == 0) return;
  const auto unless_set = [&](const char* key, auto&& set) {
    if (!m.arguments.contains(key)) set();
  };
  unless_set("moe_router_score_function", [&] {
    const bool sigmoid = model.moe.router.scoring == turbo::RouterRule::Scoring::kSigmoid;
    m.put_text("moe_router_score_function", sigmoid ? "sigmoid" : "softmax");
    if (!sigmoid && !model.moe.router.normalise) m.put("moe_router_pre_softmax", true);
  });
  unless_set("moe_router_enable_expert_bias",
             [&] { m.put("moe_router_enable_expert_bias", model.moe.choice_bias); });
  unless_set("moe_apply_probs_on_input", [&] { m.put("moe_apply_probs_on_input", model.moe.weigh_input); });
}

// Enables faster expert kernels with the same results. The layers that transformer_impl: local selects do not
// have these kernels.
void experts(Megatron& m) {
  if (m.t.num_experts.value_or(0) <= 1) return;
  const bool local = m.text_of("transformer_impl") == "local";
  for (const config::Member& member : m.fields.keys("experts").members) {
    const Value* with_local = member.value.find("local");
    if (m.is_set(member.key) || (local && with_local && !with_local->boolean)) continue;
    const Value* without = member.value.find("without");
    if (without &&
        std::ranges::any_of(without->items, [&](const Value& v) { return v.text == m.model_name(); }))
      continue;
    m.put(member.key, *member.value.find("value"));
  }
}

void rope(Megatron& m) {
  const std::string& type = m.t.position_embedding_type;
  m.put_text("position_embedding_type", type == "yarn" ? "rope" : type);  // megatron_parts() describes yarn
  if (m.t.rotary_base != std::floor(m.t.rotary_base)) {
    throw m.error_for("rotary_base", "Megatron-LM's --rotary-base is a whole number", "round it");
  }
  const bool latent = m.t.multi_latent_attention;
  if (latent) {
    const bool yarn = m.t.rope_scaling_type == "yarn";
    m.put_text("rope_type", m.t.rope_type.value_or(yarn ? "yarn" : "rope"));
    m.put_number("rotary_scaling_factor", m.t.rotary_scaling_factor);
    if (yarn) {
      constexpr std::int64_t kFixed = 4096;  // Megatron-LM's value, which no argument changes
      if (m.t.original_max_position_embeddings != 0 && m.t.original_max_position_embeddings != kFixed) {
        throw m.error_for("original_max_position_embeddings",
                          "Megatron-LM's latent attention has original_max_position_embeddings 4096",
                          "set this value, or choose framework: native");
      }
      m.put_number("mscale", m.t.mscale.value_or(1));
      m.put_number("mscale_all_dim", m.t.mscale_all_dim.value_or(0));
    }
    return;
  }
  // Adds llama3's scaling with Megatron-LM's own factors. megatron_parts() adds all other rope scaling.
  if (m.t.rope_scaling_type == "llama3") {
    m.put("use_rope_scaling", true);
    m.put_number("rope_scaling_factor", m.t.rope_scaling_factor);
  } else if (m.t.rope_scaling_type == "yarn" && m.t.rotary_percent < 1) {
    throw m.error_for("rotary_percent",
                      "Megatron-LM's yarn rotates whole heads, but rotary_percent is below 1",
                      "set rotary_percent: 1, or choose framework: native");
  }
}

// Refuses a temperature of attention that has an effect. Queries are multiplied by 1 + scale * log(1 +
// floor((position + 1) / floor)), which is 1 while position + 1 < floor.
void temperature(Megatron& m) {
  const double scale = m.t.attention_temperature_scale.value_or(0);
  const std::int64_t floor = m.t.attention_temperature_floor;
  if (scale == 0 || m.t.seq_length < floor) return;
  throw m.error_for(
      "attention_temperature_scale",
      fmt::format("Megatron-LM does not scale attention by position (attention_temperature_scale {}), but "
                  "sequences of {} tokens reach attention_temperature_floor {}",
                  scale, m.t.seq_length, floor),
      fmt::format("set seq_length below {}, or choose framework: native", floor));
}

// Sets the layer specification. AMD Primus's own specifications cannot be imported by plain Megatron-LM.
void layers(Megatron& m) {
  std::vector<std::string> spec;
  if (const Value* set = m.experiment.settings.find("spec"); set && !set->is_null()) spec = words_of(*set);
  const Value& mamba = m.fields.keys("mamba");
  if (m.is_mamba() && (spec.empty() || spec == words_of(*mamba.find("same_as"))))
    spec = words_of(*mamba.find("spec"));
  if (spec.empty()) return;
  if (spec[0].starts_with("primus.")) {
    throw m.error_for(
        "spec",
        fmt::format("Megatron-LM does not have the layers of {}, which belong to AMD Primus", spec[0]),
        "name a specification of Megatron-LM, or remove spec");
  }
  m.put_words("spec", spec);
  if (m.is_mamba()) state_space_layers(m);
}

// Megatron-LM has no recipe for MXFP4. So the command names another recipe, which with_parts.py replaces by
// MXFP4.
void recipes(Megatron& m) {
  if (m.t.fp4 && m.t.fp4_recipe == "mxfp4") m.put_text("fp4_quantizer_factory", "mxfp4");
  if (m.is_mamba() && m.t.final_logit_softcapping.value_or(0) > 0) {
    throw m.error_for("final_logit_softcapping",
                      "Megatron-LM has no soft cap on logits for state-space models",
                      "remove final_logit_softcapping");
  }
}

void patterns(Megatron& m) {
  const auto pattern = [&](const char* key, const std::vector<std::string>& words) {
    if (!words.empty()) m.put_text(key, pattern_word(words));
  };
  if (m.t.num_experts) pattern("moe_layer_freq", m.t.moe_layer_freq);
  pattern("linear_attention_freq", m.t.linear_attention_freq);
  pattern("no_rope_freq", m.t.no_rope_freq);
  pattern("window_attn_skip_freq", m.t.window_attn_skip_freq);
  if (!m.t.window_size.empty()) {
    std::string text = fmt::format("{}", fmt::join(m.t.window_size, ","));
    std::erase_if(text, [](char c) { return c == '(' || c == ')' || c == '[' || c == ']' || c == ' '; });
    m.put_text("window_size", text);
  }
  if (m.t.use_sink_attention) {
    m.put_text("softmax_type", "learnable");
  } else if (m.t.softmax_type) {
    m.put_text("softmax_type", *m.t.softmax_type);
  }
}

}  // namespace primus::backends::megatron
