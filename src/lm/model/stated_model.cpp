#include "lm/model/stated_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "config/keys.h"
#include "config/trainer_config.h"
#include "lm/model/family_switches.h"
#include "lm/model/model_fields.h"

namespace primus {

const Family& StatedModel::family() const {
  try {
    return families.find(family_name());
  } catch (const Error& error) {
    throw experiment.error_for("model_type", error.what(), error.hint());
  }
}

// Returns the family that the settings describe. Megatron-LM's presets set model_type gpt for every model;
// the family then follows from the other settings.
std::string StatedModel::family_name() const {
  const bool deepseek = t.model_type == "deepseek_v2" || t.model_type == "deepseek_v3";
  if (deepseek && !t.multi_latent_attention && is_set("multi_latent_attention")) {
    warn_of_own_family(
        fmt::format("{} with multi_latent_attention: false has ordinary attention", t.model_type),
        "multi_latent_attention");
    return kOwnFamily;
  }
  if (t.model_type != "gpt") return t.model_type;
  if (t.experimental_attention_variant == kGatedDeltaVariant) return gated_delta_family();
  if (t.experimental_attention_variant == kSparseVariant) return "deepseek_v32";
  const bool sigmoid = t.moe_router_score_function == "sigmoid";
  const bool head_norms = t.qk_layernorm.value_or(false), biases = t.add_qkv_bias.value_or(false);
  const bool sinks = has_sinks();
  const bool caps = t.final_logit_softcapping.value_or(0) > 0 ||
                    (t.num_experts && t.router_logit_softcapping.value_or(0) > 0);
  if (t.multi_latent_attention) return sigmoid ? "deepseek_v3" : "deepseek_v2";
  std::string name = kOwnFamily;
  const bool part = t.rotary_percent != 1;
  const bool plain_experts =
      !t.moe_shared_expert_intermediate_size && t.moe_router_num_groups.value_or(1) == 1;
  if (std::ranges::find(t.lfm_layer_types, kConvolutionType) != t.lfm_layer_types.end()) {
    const bool alike = head_norms && !biases && !sinks && !caps && !part && t.window_size.empty();
    if (alike && !t.num_experts) name = "lfm2";
    if (alike && t.num_experts && sigmoid && plain_experts) name = "lfm2_moe";
  } else if (!sinks && !caps && !part && !t.num_experts && !(head_norms && biases)) {
    name = head_norms ? "qwen3" : biases ? "qwen2" : "llama";
    if (!t.window_size.empty()) name = kOwnFamily;
  } else if (t.num_experts && !sinks && !caps && !part && !biases && !sigmoid && t.window_size.empty() &&
             !t.moe_router_pre_softmax.value_or(false) && plain_experts &&
             !t.moe_router_enable_expert_bias.value_or(false) &&
             t.moe_router_topk_scaling_factor.value_or(1) == 1) {
    const bool alike = t.moe_ffn_hidden_size.value_or(t.ffn_hidden_size) == t.ffn_hidden_size;
    if (head_norms) name = "qwen3_moe";
    if (!head_norms && alike && t.moe_layer_freq.empty()) name = "mixtral";
  }
  if (name == kOwnFamily) warn_of_own_family("no published architecture combines these parts", "model_type");
  return name;
}

// Returns the family of a model with gated delta networks. Only Qwen published such models, and these models
// have all parts below. If a part is missing, no family matches, and the settings are refused.
std::string StatedModel::gated_delta_family() const {
  std::vector<std::pair<const char*, bool>> parts = {
      {"qk_layernorm", t.qk_layernorm.value_or(false)},
      {"attention_output_gate", t.attention_output_gate.value_or(false)},
      {"apply_layernorm_1p", t.apply_layernorm_1p.value_or(false)}};
  if (t.num_experts) parts.emplace_back("moe_shared_expert_gate", t.moe_shared_expert_gate.value_or(false));
  for (const auto& [key, said] : parts) {
    if (said) continue;
    throw experiment.error_for(is_set(key) ? key : "experimental_attention_variant",
                               fmt::format("no model family has gated delta networks without {}", key),
                               fmt::format("set {}: true", key));
  }
  if (!t.num_experts) return "qwen3_5_text";
  const bool all_routed = t.moe_layer_freq.empty() || t.moe_layer_freq == std::vector<std::string>{"1"};
  return all_routed ? "qwen3_5_moe_text" : "qwen3_next";
}

void StatedModel::warn_of_own_family(const std::string& reason, std::string_view key) const {
  if (!warnings) return;
  warnings->push_back(
      fmt::format("{}: {}: it is saved as model_type {}, which Primus can load, but transformers cannot",
                  experiment.provenance_of(key).describe(), reason, kOwnFamily));
}

bool StatedModel::is_set(std::string_view key) const {
  return experiment.provenance_of(key).layer > config::Layer::kDerived;
}

bool StatedModel::has_sinks() const { return t.use_sink_attention || t.softmax_type == "learnable"; }

void StatedModel::take(std::initializer_list<ModelPart> parts, ModelConfig& c) const {
  for_each_model_field([&](const auto& field) {
    if (std::ranges::find(parts, field.part) != parts.end()) field.read(t, c);
  });
}

Error StatedModel::differs(std::string_view key, std::string_view has) const {
  return experiment.error_for(
      is_set(key) ? key : "model_type", fmt::format("model_type {} has {}: {}", t.model_type, key, has),
      is_set(key) ? fmt::format("omit {}, or choose another model_type", key)
                  : fmt::format("set {} to this value, or choose another model_type", key));
}

void StatedModel::check_switches(const Family& family) const {
  for (const auto& [name, has] : switches_of(family)) {
    const config::KeySpec* key = config::find_key(name);
    const config::Value said = config::current_value(*key, t);
    if (said.is_null() || said.text == has || has == kEither || has == kChosen) continue;
    throw differs(name, has.empty() ? "null" : has);
  }
  if (t.softmax_type == "off-by-one") throw differs("softmax_type", "vanilla or learnable");
  const bool can_have_sinks = leaves_open(family, "softmax_type") ||
                              std::ranges::any_of(family.switches, [](const FamilySwitch& own) {
                                return own.key == "softmax_type" && own.value == "learnable";
                              });
  if (t.use_sink_attention && !can_have_sinks) throw differs("use_sink_attention", "no sinks");
}

}  // namespace primus
