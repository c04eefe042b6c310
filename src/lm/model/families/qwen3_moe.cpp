// Qwen 3 with mixtures of experts (Yang et al. 2025). norm_topk_prob normalises the weights of the chosen
// experts; some layers may be dense.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "lm/model/blocks/layers.h"
#include "lm/model/blocks/mixture_of_experts.h"
#include "lm/model/config_reader.h"
#include "lm/model/families/families.h"

namespace primus {
namespace {

constexpr const char* kDefaults = R"({"num_key_value_heads": 4, "max_position_embeddings": 32768,
  "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768})";

// Adds the defaults of transformers' class for the text part of Qwen3-VL mixtures. This class always
// normalises the weights of the chosen experts.
void prepare(nlohmann::json& root) {
  const ConfigReader r(root);
  if (!r.text_or("model_type", "").starts_with("qwen3_vl")) return;
  refuse_unless(root, "norm_topk_prob", true);
  nlohmann::json defaults = {{"norm_topk_prob", true},      {"num_key_value_heads", 16},
                             {"intermediate_size", 5632},   {"max_position_embeddings", 128000},
                             {"num_experts_per_tok", 4},    {"moe_intermediate_size", 1408},
                             {"tie_word_embeddings", true}, {"rope_theta", 500000.0}};
  if (!r.find("num_local_experts")) defaults["num_experts"] = 60;
  for (const auto& [key, value] : defaults.items()) {
    if (!r.find(key.c_str())) root[key] = value;
  }
}

void read(const nlohmann::json& json, ModelConfig& c) {
  refuse_unless(json, "attention_bias", false);
  refuse_unless(json, "hidden_act", "silu");
  refuse_unless(json, "use_sliding_window", false);
  const ConfigReader r(json);
  // transformers 4 writes num_experts, transformers 5 num_local_experts.
  read_expert_counts(r, r.find("num_local_experts") ? "num_local_experts" : "num_experts", c);
  c.moe.router.normalise = r.flag_or("norm_topk_prob", false);
  c.moe.ffn = r.integer("moe_intermediate_size", 1, ConfigReader::kMaxWidth);
  read_sparse_layers(r, c);
}

void write(const ModelConfig& c, nlohmann::json& json) {
  json["attention_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["hidden_act"] = "silu";
  json["use_sliding_window"] = false;
  json["sliding_window"] = nullptr;
  json["num_experts"] = json["num_local_experts"] = c.moe.experts;
  json["num_experts_per_tok"] = c.moe.router.top_k;
  json["norm_topk_prob"] = c.moe.router.normalise;
  json["moe_intermediate_size"] = c.moe.ffn;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = c.dense_layers();
  json["output_router_logits"] = false;
  json["router_aux_loss_coef"] = c.moe.training.balance_loss;
}

std::unique_ptr<Block> make_block(const ModelConfig& config, engine::ParameterStore& store,
                                  std::int64_t layer, int chunk) {
  const BlockParameters parameters(config, store, layer, chunk);
  SelfAttentionOptions options = attention_options(config, layer);
  options.head_norm = SelfAttentionOptions::HeadNorm::kBeforeRope;
  return std::make_unique<DecoderBlock>(
      config, parameters, [&] { return self_attention(config, parameters, options); },
      [&] {
        if (!config.routed(layer)) return feed_forward(config, parameters, config.ffn);
        return mixture_of_experts(config, parameters,
                                  separate_experts(config, ".mlp.gate.weight", ".mlp.experts", "gate_proj",
                                                   "up_proj", "down_proj"));
      });
}

}  // namespace

void read_sparse_layers(const ConfigReader& r, ModelConfig& c) {
  const std::int64_t step = r.integer_or("decoder_sparse_step", 1, 1, c.layers);
  const std::vector<std::int64_t> dense = r.integers("mlp_only_layers", 0, c.layers - 1);
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    const bool named = std::ranges::find(dense, layer) != dense.end();
    if (named || (layer + 1) % step != 0) c.at(layer).feed_forward = &kDenseFeedForward;
  }
}

extern const FamilyEntry kQwen3Moe{[]() -> Family {
  Family family{"qwen3_moe", "Qwen3MoeForCausalLM",      read,     write,
                make_block,  {{"qk_layernorm", "true"}}, kDefaults};
  family.other_keys = {"max_window_layers"};
  // The text part of Qwen3-VL mixtures rotates text tokens as Qwen 3 does.
  family.other_names = {"qwen3_vl_moe_text", "qwen3_vl_moe"};
  family.prepare = prepare;
  return family;
}};

}  // namespace primus
