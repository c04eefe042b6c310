// Megatron-LM's GPT, for combinations of parts that no published architecture has. Attention is grouped-query
// attention with optional biases, QK norm, sinks, windows and partial rotation. Some blocks may have short
// convolutions. A block has a SwiGLU feed-forward, or a mixture with any router and shared experts. Soft caps
// may limit the logits of routers and of the output. An example is DeepSeek's experts with ordinary
// attention. Another example is LFM2 in AMD Primus, where tokens choose experts by another rule. config.json
// names a separate model_type, because transformers has no class for these models.
#include <nlohmann/json.hpp>

#include "lm/model/blocks/layers.h"
#include "lm/model/blocks/mixture_of_experts.h"
#include "lm/model/config_reader.h"
#include "lm/model/families/families.h"
#include "lm/model/layer_kind.h"

namespace primus {
namespace {

using turbo::RouterRule;

constexpr const char* kLocal = "sliding_attention";
constexpr double kMaxScale = 1e6;

constexpr const char *kLogitCap = "final_logit_softcapping", *kRouterCap = "router_logit_softcapping";

// Reads a soft cap; null and 0 mean no cap. With a cap below kMin, fp32 would lose all precision.
double read_cap(const ConfigReader& r, const char* key) {
  constexpr double kMin = 1e-3, kMax = 1e6;
  const double cap = r.number_or(key, 0);
  if (cap != 0 && (cap < kMin || cap > kMax)) throw r.bad(key, "must be null, 0, or from 0.001 to 1000000");
  return cap;
}

nlohmann::json cap_json(double cap) { return cap > 0 ? nlohmann::json(cap) : nlohmann::json(); }

void read_experts(const nlohmann::json& json, ModelConfig& c) {
  const ConfigReader r(json);
  if (!r.find("num_experts")) return;
  read_expert_counts(r, "num_experts", c);
  c.moe.ffn = r.integer("moe_intermediate_size", 1, ConfigReader::kMaxWidth);
  c.moe.shared_ffn = r.integer_or("shared_expert_intermediate_size", 0, 0, ConfigReader::kMaxWidth);
  c.set_layers(r.integers("mlp_only_layers", 0, c.layers - 1), &LayerSpec::feed_forward, &kDenseFeedForward);
  c.moe.choice_bias = r.flag_or("use_expert_bias", false);
  c.moe.logit_cap = read_cap(r, kRouterCap);
  RouterRule& router = c.moe.router;
  const std::string scoring = r.text_or("scoring_func", "softmax");
  if (scoring != "softmax" && scoring != "sigmoid") throw r.bad("scoring_func", "must be softmax or sigmoid");
  router.scoring = scoring == "sigmoid" ? RouterRule::Scoring::kSigmoid : RouterRule::Scoring::kSoftmax;
  router.normalise = r.flag_or("norm_topk_prob", true);
  router.groups =
      static_cast<std::int32_t>(r.integer_or("n_group", 1, 1, std::min(c.moe.experts, RouterRule::kMaxTopK)));
  router.top_groups = static_cast<std::int32_t>(r.integer_or("topk_group", 1, 1, router.groups));
  if (c.moe.experts % router.groups != 0) throw r.bad("n_group", "does not divide num_experts");
  if (router.top_k > c.moe.experts / router.groups * router.top_groups) {
    throw r.bad("num_experts_per_tok", "is more than the number of experts in topk_group groups");
  }
  // Megatron-LM scores a group by the n best experts of the group. n is the number of experts that a token
  // uses in each chosen group.
  const std::int32_t best = router.top_k / router.top_groups;
  if (router.groups > 1 && (best < 1 || best > 2 || best > c.moe.experts / router.groups)) {
    throw r.not_supported(
        "n_group", ": group scores from the " + std::to_string(best) + " best experts are not supported",
        "num_experts_per_tok / topk_group must be 1 or 2");
  }
  router.group_score =
      router.groups > 1 && best == 2 ? RouterRule::GroupScore::kTwoBest : RouterRule::GroupScore::kBest;
  const double scale = r.positive_or("routed_scaling_factor", 1);
  if (scale > kMaxScale) throw r.bad("routed_scaling_factor", "is above 1000000");
  router.scale = static_cast<float>(scale);
}

void read(const nlohmann::json& json, ModelConfig& c) {
  refuse_unless(json, "hidden_act", "silu");
  const ConfigReader r(json);
  c.attention.qkv_bias = r.flag_or("attention_bias", false);
  c.attention.qk_norm = r.flag_or("use_qk_norm", false);
  c.attention.sinks = r.flag_or("attention_sinks", false);
  c.attention.window = r.integer_or("sliding_window", 0, 0, ConfigReader::kMaxWidth);
  read_convolutions(json, c.attention.window > 0 ? kLocal : nullptr, c);
  if (c.attention.window > 0) {
    read_local_layers(json, kLocal, c, [](const nlohmann::json&, std::int64_t) { return true; });
  }
  c.logit_cap = read_cap(r, kLogitCap);
  read_experts(json, c);
}

void write(const ModelConfig& c, nlohmann::json& json) {
  json["attention_bias"] = c.attention.qkv_bias;
  json["attention_dropout"] = 0.0;
  json["attention_sinks"] = c.attention.sinks;
  json["hidden_act"] = "silu";
  json[kLogitCap] = cap_json(c.logit_cap);
  json["use_qk_norm"] = c.attention.qk_norm;
  json["sliding_window"] = c.attention.window;
  const bool convolves = c.any_keeps(Keeps::kInputs);
  if (convolves) write_convolutions(c, json);
  if (c.attention.window > 0 || convolves) write_layer_types(c, kLocal, json);
  if (c.moe.experts == 0) return;
  const RouterRule& router = c.moe.router;
  json["num_experts"] = c.moe.experts;
  json["num_experts_per_tok"] = router.top_k;
  json["moe_intermediate_size"] = c.moe.ffn;
  json["shared_expert_intermediate_size"] = c.moe.shared_ffn;
  json["mlp_only_layers"] = c.dense_layers();
  json["use_expert_bias"] = c.moe.choice_bias;
  json[kRouterCap] = cap_json(c.moe.logit_cap);
  json["scoring_func"] = router.scoring == RouterRule::Scoring::kSigmoid ? "sigmoid" : "softmax";
  json["norm_topk_prob"] = router.normalise;
  json["n_group"] = router.groups;
  json["topk_group"] = router.top_groups;
  json["routed_scaling_factor"] = shortest(router.scale);
}

std::unique_ptr<Block> make_block(const ModelConfig& config, engine::ParameterStore& store,
                                  std::int64_t layer, int chunk) {
  const BlockParameters parameters(config, store, layer, chunk);
  SelfAttentionOptions options = attention_options(config, layer);
  options.qkv_bias = config.attention.qkv_bias;
  options.sinks = config.attention.sinks;
  if (config.attention.qk_norm) options.head_norm = SelfAttentionOptions::HeadNorm::kBeforeRope;
  return std::make_unique<DecoderBlock>(
      config, parameters,
      [&] {
        return config.convolves(layer) ? kShortConvolution.make(config, parameters)
                                       : self_attention(config, parameters, options);
      },
      [&]() -> std::unique_ptr<Layer> {
        if (!config.routed(layer)) return feed_forward(config, parameters, config.ffn);
        ExpertParts parts =
            separate_experts(config, ".mlp.gate.weight", ".mlp.experts", "gate_proj", "up_proj", "down_proj");
        parts.choice_bias = ".mlp.gate.e_score_correction_bias";
        parts.shared = ".mlp.shared_experts";
        return mixture_of_experts(config, parameters, parts);
      });
}

}  // namespace

extern const FamilyEntry kPrimusGpt{[]() -> Family {
  Family family{"primus_gpt", "PrimusGptForCausalLM", read, write, make_block};
  family.switches = {{"add_qkv_bias", kEither}, {"qk_layernorm", kEither}, {"softmax_type", kEither}};
  family.partial_rotary = true;
  return family;
}};

}  // namespace primus
