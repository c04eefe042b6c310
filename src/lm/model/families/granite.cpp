// Granite 3 (IBM 2024): Llama with factors on embeddings, residual branches, attention scores and logits.
// Mixture models have experts in every block and may have a shared expert.
#include <cmath>
#include <nlohmann/json.hpp>

#include "lm/model/blocks/layers.h"
#include "lm/model/blocks/mixture_of_experts.h"
#include "lm/model/config_reader.h"
#include "lm/model/families/families.h"

namespace primus {
namespace {

constexpr const char* kMoeDefaults = R"({"num_local_experts": 8, "num_experts_per_tok": 2})";

double usual_scale(const ModelConfig& c) { return 1 / std::sqrt(static_cast<double>(c.head_dim)); }

void read(const nlohmann::json& json, ModelConfig& c) {
  refuse_unless(json, "attention_bias", false);
  refuse_unless(json, "mlp_bias", false);
  refuse_unless(json, "hidden_act", "silu");
  const ConfigReader r(json);
  c.embedding_scale = r.positive_or("embedding_multiplier", 1);
  c.residual_scale = r.positive_or("residual_multiplier", 1);
  c.logit_divisor = r.positive_or("logits_scaling", 1);
  const double scale = r.positive_or("attention_multiplier", 1);
  c.attention.score_scale = scale == usual_scale(c) ? 0 : scale;
}

void write(const ModelConfig& c, nlohmann::json& json) {
  json["attention_bias"] = json["mlp_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["hidden_act"] = "silu";
  json["embedding_multiplier"] = c.embedding_scale;
  json["residual_multiplier"] = c.residual_scale;
  json["logits_scaling"] = c.logit_divisor;
  json["attention_multiplier"] = c.attention.score_scale > 0 ? c.attention.score_scale : usual_scale(c);
}

void read_moe(const nlohmann::json& json, ModelConfig& c) {
  read(json, c);
  read_expert_counts(ConfigReader(json), "num_local_experts", c);
  c.moe.ffn = c.ffn;
}

void write_moe(const ModelConfig& c, nlohmann::json& json) {
  write(c, json);
  json.erase("mlp_bias");
  json["num_local_experts"] = c.moe.experts;
  json["num_experts_per_tok"] = c.moe.router.top_k;
  json["output_router_logits"] = false;
  json["router_aux_loss_coef"] = c.moe.training.balance_loss;
}

void read_shared(const nlohmann::json& json, ModelConfig& c) {
  read_moe(json, c);
  c.moe.shared_ffn = ConfigReader(json).integer_or("shared_intermediate_size", 0, 0, ConfigReader::kMaxWidth);
}

void write_shared(const ModelConfig& c, nlohmann::json& json) {
  write_moe(c, json);
  json["shared_intermediate_size"] = c.moe.shared_ffn;
}

// Checkpoints store all experts of a layer in one tensor per matrix.
ExpertParts expert_parts(const ModelConfig& c) {
  const std::int64_t e = c.moe.experts, ffn = c.moe.ffn, hidden = c.hidden;
  const std::string at = ".block_sparse_moe.";
  return {
      .router = at + "router.layer.weight",
      .gate_up = {{at + "input_linear.weight",
                   0,
                   e * 2 * ffn,
                   {{e, 2 * ffn, hidden}, {0, 1, 2}, {e, 2 * ffn, hidden}}}},
      .down = {{at + "output_linear.weight", 0, e * hidden, {{e, hidden, ffn}, {0, 1, 2}, {e, hidden, ffn}}}},
      .shared = ".shared_mlp",
      .shared_names = {.down = "output_linear", .gate_up = "input_linear"}};
}

std::unique_ptr<Block> make_moe_block(const ModelConfig& config, engine::ParameterStore& store,
                                      std::int64_t layer, int chunk) {
  const BlockParameters parameters(config, store, layer, chunk);
  return std::make_unique<DecoderBlock>(
      config, parameters,
      [&] { return self_attention(config, parameters, attention_options(config, layer)); },
      [&] { return mixture_of_experts(config, parameters, expert_parts(config)); });
}

}  // namespace

extern const FamilyEntry kGranite{[]() -> Family {
  return {"granite", "GraniteForCausalLM", read, write, make_llama_block};
}};

extern const FamilyEntry kGraniteMoe{[]() -> Family {
  Family family{"granitemoe", "GraniteMoeForCausalLM", read_moe, write_moe, make_moe_block, {}, kMoeDefaults};
  family.other_keys = {"mlp_bias"};
  return family;
}};

extern const FamilyEntry kGraniteMoeShared{[]() -> Family {
  Family family{
      "granitemoeshared", "GraniteMoeSharedForCausalLM", read_shared, write_shared, make_moe_block, {},
      kMoeDefaults};
  family.other_keys = {"mlp_bias"};
  return family;
}};

}  // namespace primus
