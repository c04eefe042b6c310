// GLM-4.5 to 4.7 (Zhipu AI 2025, arXiv:2508.06471): grouped-query attention and DeepSeek-V3's mixture of
// experts with a shared expert. Heads are partially rotated. Biases and QK norm are optional.
#include <nlohmann/json.hpp>

#include "lm/model/blocks/layers.h"
#include "lm/model/blocks/mixture_of_experts.h"
#include "lm/model/config_reader.h"
#include "lm/model/families/deepseek.h"
#include "lm/model/families/families.h"

namespace primus {
namespace {

constexpr const char* kDefaults = R"({"num_key_value_heads": 8, "max_position_embeddings": 131072,
  "rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "moe_intermediate_size": 1408, "num_experts_per_tok": 8,
  "n_shared_experts": 1, "n_routed_experts": 128, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1})";

void read(const nlohmann::json& json, ModelConfig& c) {
  refuse_unless(json, "hidden_act", "silu");
  const ConfigReader r(json);
  c.attention.qkv_bias = r.flag_or("attention_bias", false);
  c.attention.qk_norm = r.flag_or("use_qk_norm", false);
  deepseek::read_experts(json, c);
  deepseek::read_sigmoid_scores(json, c);
}

void write(const ModelConfig& c, nlohmann::json& json) {
  json["attention_bias"] = c.attention.qkv_bias;
  json["attention_dropout"] = 0.0;
  json["hidden_act"] = "silu";
  json["use_qk_norm"] = c.attention.qk_norm;
  write_rotary_fraction(c, json);
  json["num_nextn_predict_layers"] = c.mtp.modules();  // written even if it is 0, because the default is 1
  deepseek::write_experts(c, json);
}

std::unique_ptr<Block> make_block(const ModelConfig& config, engine::ParameterStore& store,
                                  std::int64_t layer, int chunk) {
  const BlockParameters parameters(config, store, layer, chunk);
  SelfAttentionOptions options = attention_options(config, layer);
  options.qkv_bias = config.attention.qkv_bias;
  if (config.attention.qk_norm) options.head_norm = SelfAttentionOptions::HeadNorm::kBeforeRope;
  return std::make_unique<DecoderBlock>(
      config, parameters, [&] { return self_attention(config, parameters, options); },
      [&] { return deepseek::feed_forward_or_experts(config, parameters); });
}

}  // namespace

extern const FamilyEntry kGlm4Moe{[]() -> Family {
  Family family{"glm4_moe", "Glm4MoeForCausalLM", read, write, make_block};
  family.switches = {{"add_qkv_bias", kEither}, {"qk_layernorm", kEither}};
  family.defaults = kDefaults;
  family.partial_rotary = true;
  // The first two keys must have their usual values. For a model without experts, the other keys are not
  // written.
  family.other_keys = {"mlp_bias",         "moe_layer_freq", "moe_intermediate_size", "n_group",
                       "n_shared_experts", "norm_topk_prob", "num_experts_per_tok",   "routed_scaling_factor",
                       "topk_group"};
  family.aliases = {{"num_local_experts", "n_routed_experts"},
                    {"num_mtp_layers", "num_nextn_predict_layers"}};
  return family;
}};

}  // namespace primus
