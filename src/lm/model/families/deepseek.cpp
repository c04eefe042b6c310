#include "lm/model/families/deepseek.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lm/model/blocks/layers.h"
#include "lm/model/blocks/mixture_of_experts.h"
#include "lm/model/config_reader.h"
#include "lm/model/families/families.h"

namespace primus::deepseek {

using turbo::RouterRule;

namespace {

constexpr double kMaxScale = 1e6;

void read_attention(const nlohmann::json& json, ModelConfig& c) {
  refuse_unless(json, "attention_bias", false);
  refuse_unless(json, "rope_interleave", true);
  // transformers repeats each key by the integer quotient of heads and kv_heads. Latent attention already has
  // one key per head, so transformers fails if the quotient is above 1. Smaller quotients have no effect. For
  // DeepSeek-V3, transformers' default of kv_heads is 128.
  if (c.heads / c.kv_heads > 1) refuse_unless(json, "num_key_value_heads", c.heads);
  const ConfigReader r(json);
  const RopeScaling& rope = c.rope_scaling;
  if (rope.kind != RopeScaling::Kind::kYarn && rope.mscale_all_dim.value_or(0) != 0) {
    throw r.not_supported("mscale_all_dim", " is not supported with this rope_type", "only yarn has it");
  }
  const std::int64_t maximum = ConfigReader::kMaxWidth;
  LatentConfig& latent = c.attention.latent;
  latent = {.q_rank = r.integer_or("q_lora_rank", 0, 1, maximum),
            .kv_rank = r.integer("kv_lora_rank", 1, maximum),
            .nope_dim = r.integer("qk_nope_head_dim", 1, maximum),
            .rope_dim = r.integer("qk_rope_head_dim", 1, maximum),
            .value_dim = r.integer("v_head_dim", 1, maximum)};
  if (latent.rope_dim % 2 != 0) throw r.bad("qk_rope_head_dim", "is odd, and rotary positions need pairs");
  c.set_layers(&LayerSpec::attention, &kLatentAttention);
  c.kv_heads = c.heads;
  c.head_dim = latent.nope_dim + latent.rope_dim;
}

}  // namespace

void read_experts(const nlohmann::json& json, ModelConfig& c) {
  refuse_unless(json, "mlp_bias", false);
  refuse_unless(json, "moe_layer_freq", 1);
  const ConfigReader r(json);
  if (!r.find("n_routed_experts")) return;
  read_expert_counts(r, "n_routed_experts", c);
  c.moe.ffn = r.integer("moe_intermediate_size", 1, ConfigReader::kMaxWidth);
  c.moe.shared_ffn = r.integer_or("n_shared_experts", 0, 0, 1024) * c.moe.ffn;
  const std::int64_t dense =
      std::min(c.layers, r.integer_or("first_k_dense_replace", 0, 0, ConfigReader::kMaxWidth));
  for (std::int64_t layer = 0; layer < dense; ++layer) c.at(layer).feed_forward = &kDenseFeedForward;
  const double scale = r.positive_or("routed_scaling_factor", 1);
  if (scale > kMaxScale) throw r.bad("routed_scaling_factor", "is above 1000000");
  c.moe.router.scale = static_cast<float>(scale);
}

void read_parts(const nlohmann::json& json, ModelConfig& c) {
  read_attention(json, c);
  read_experts(json, c);
}

void read_common(const nlohmann::json& json, ModelConfig& c) {
  refuse_unless(json, "hidden_act", "silu");
  read_parts(json, c);
}

void read_groups(const nlohmann::json& json, ModelConfig& c) {
  if (c.moe.experts == 0) return;
  const ConfigReader r(json);
  RouterRule& router = c.moe.router;
  router.groups =
      static_cast<std::int32_t>(r.integer("n_group", 1, std::min(c.moe.experts, RouterRule::kMaxTopK)));
  router.top_groups = static_cast<std::int32_t>(r.integer("topk_group", 1, router.groups));
  if (c.moe.experts % router.groups != 0) throw r.bad("n_group", "does not divide n_routed_experts");
  if (router.group_score == RouterRule::GroupScore::kTwoBest && c.moe.experts == router.groups) {
    throw r.bad("n_group", "leaves groups of one expert, but a group's score is the sum of its two best");
  }
  if (router.top_k > c.moe.experts / router.groups * router.top_groups) {
    throw r.bad("num_experts_per_tok", "is more than the number of experts in topk_group groups");
  }
}

void read_sigmoid_scores(const nlohmann::json& json, ModelConfig& c) {
  c.moe.router.scoring = RouterRule::Scoring::kSigmoid;
  c.moe.router.group_score = RouterRule::GroupScore::kTwoBest;
  read_groups(json, c);
  c.moe.router.normalise = ConfigReader(json).flag_or("norm_topk_prob", true);
  c.moe.choice_bias = c.moe.experts > 0;
}

void write_common(const ModelConfig& c, nlohmann::json& json) {
  const LatentConfig& latent = c.attention.latent;
  json["attention_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["hidden_act"] = "silu";
  json["q_lora_rank"] = latent.q_rank > 0 ? nlohmann::json(latent.q_rank) : nlohmann::json();
  json["kv_lora_rank"] = latent.kv_rank;
  json["qk_nope_head_dim"] = latent.nope_dim;
  json["qk_rope_head_dim"] = json["head_dim"] = latent.rope_dim;  // transformers rotates head_dim columns
  json["qk_head_dim"] = c.head_dim;
  json["v_head_dim"] = latent.value_dim;
  json["moe_layer_freq"] = 1;
  write_experts(c, json);
}

void write_experts(const ModelConfig& c, nlohmann::json& json) {
  json["n_routed_experts"] = c.moe.experts > 0 ? nlohmann::json(c.moe.experts) : nlohmann::json();
  json["first_k_dense_replace"] =
      c.moe.experts > 0 ? static_cast<std::int64_t>(c.dense_layers().size()) : c.layers;
  if (c.moe.experts == 0) return;
  if (c.moe.shared_ffn % c.moe.ffn != 0) {
    throw ConfigKeyError(ErrorKind::kInvalid, "n_shared_experts",
                         fmt::format("'n_shared_experts' would not be an integer, with width {} for one "
                                     "expert and {} for all shared experts",
                                     c.moe.ffn, c.moe.shared_ffn),
                         "set moe_shared_expert_intermediate_size to a multiple of moe_ffn_hidden_size");
  }
  json["moe_intermediate_size"] = c.moe.ffn;
  json["n_shared_experts"] = c.moe.shared_ffn / c.moe.ffn;
  json["num_experts_per_tok"] = c.moe.router.top_k;
  json["n_group"] = c.moe.router.groups;
  json["topk_group"] = c.moe.router.top_groups;
  json["routed_scaling_factor"] = shortest(c.moe.router.scale);
  json["norm_topk_prob"] = c.moe.router.normalise;
  const MoeConfig::Training& training = c.moe.training;
  if (training.balance_loss == 0) return;
  json["aux_loss_alpha"] = training.balance_loss;
  json["seq_aux"] = training.balance_sequences;
}

std::unique_ptr<Layer> feed_forward_or_experts(const ModelConfig& config, const BlockParameters& parameters) {
  if (!config.routed(parameters.layer())) return feed_forward(config, parameters, config.ffn);
  ExpertParts parts =
      separate_experts(config, ".mlp.gate.weight", ".mlp.experts", "gate_proj", "up_proj", "down_proj");
  parts.choice_bias = ".mlp.gate.e_score_correction_bias";
  parts.shared = ".mlp.shared_experts";
  return mixture_of_experts(config, parameters, parts);
}

std::unique_ptr<Block> make_block(const ModelConfig& config, engine::ParameterStore& store,
                                  std::int64_t layer, int chunk) {
  const BlockParameters parameters(config, store, layer, chunk);
  return std::make_unique<DecoderBlock>(
      config, parameters, [&] { return latent_attention(config, parameters); },
      [&] { return feed_forward_or_experts(config, parameters); });
}

// Latents are always normalized. The shared key is always rotated in interleaved pairs. Like Megatron-LM,
// Primus ignores rotary_interleaved in latent attention, so both values are accepted.
std::vector<FamilySwitch> switches() {
  return {{"multi_latent_attention", "true"}, {"qk_layernorm", "true"}, {"rotary_interleaved", kEither}};
}

// Includes the keys of experts, which are not written for a model without experts. ep_size describes only how
// the model was trained.
std::vector<std::string_view> other_keys() {
  return {"ep_size",
          "mlp_bias",
          "moe_intermediate_size",
          "n_group",
          "n_shared_experts",
          "norm_topk_prob",
          "num_experts_per_tok",
          "rope_interleave",
          "routed_scaling_factor",
          "topk_group"};
}

}  // namespace primus::deepseek
