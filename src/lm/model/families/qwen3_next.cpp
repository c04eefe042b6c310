// Qwen3-Next (Qwen team 2025) and Qwen3.5, the same architecture with a different tensor layout. Three of
// four blocks have a gated delta network; the fourth has attention with QK norm, an output gate, and rotation
// of a quarter of each head. Norm weights are stored minus one. Qwen3-Next and the larger Qwen3.5 have
// mixtures of small experts with a gated shared expert.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "lm/model/blocks/layers.h"
#include "lm/model/blocks/mixture_of_experts.h"
#include "lm/model/config_reader.h"
#include "lm/model/families/families.h"
#include "turbo/causal_conv/causal_conv.h"
#include "turbo/delta_rule/delta_rule.h"

namespace primus {
namespace {

constexpr const char* kNextDefaults =
    R"({"intermediate_size": 5632, "num_key_value_heads": 2, "head_dim": 256,
  "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "partial_rotary_factor": 0.25,
  "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
  "shared_expert_intermediate_size": 512})";
// Qwen3.5's mixture models have no dense blocks and omit the width of dense blocks.
constexpr const char* kMoeDefaults = R"({"intermediate_size": 5120, "num_key_value_heads": 2, "head_dim": 256,
  "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "partial_rotary_factor": 0.25,
  "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
  "shared_expert_intermediate_size": 512})";
constexpr const char* kDenseDefaults = R"({"num_key_value_heads": 4, "head_dim": 256,
  "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "partial_rotary_factor": 0.25})";

constexpr const char *kLinear = "linear_attention", *kFull = "full_attention";

// Reads the kinds of layers. Without `layer_types`, every full_attention_interval-th layer has attention.
void read_layers(const nlohmann::json& json, ModelConfig& c) {
  const ConfigReader r(json);
  if (r.find("layer_types")) {
    const std::vector<std::string> types = read_layer_types(json, c, {kFull, kLinear});
    for (std::size_t layer = 0; layer < types.size(); ++layer) {
      if (types[layer] == kLinear) c.at(static_cast<std::int64_t>(layer)).attention = &kGatedDeltaNet;
    }
    return;
  }
  const std::int64_t interval = r.integer_or("full_attention_interval", 4, 1, ConfigReader::kMaxWidth);
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    if ((layer + 1) % interval != 0) c.at(layer).attention = &kGatedDeltaNet;
  }
}

void read_common(const nlohmann::json& json, ModelConfig& c) {
  refuse_unless(json, "attention_bias", false);
  refuse_unless(json, "attn_output_gate", true);
  refuse_unless(json, "hidden_act", "silu");
  const ConfigReader r(json);
  c.centred_norms = c.attention.output_gate = true;
  read_layers(json, c);
  LinearAttentionConfig& l = c.linear;
  const std::int64_t max_dim = turbo::DeltaRuleShape::kMaxDim;
  l.key_heads = r.integer_or("linear_num_key_heads", 16, 1, ConfigReader::kMaxWidth);
  l.value_heads = r.integer_or("linear_num_value_heads", 32, 1, ConfigReader::kMaxWidth);
  l.key_dim = r.integer_or("linear_key_head_dim", 128, 1, max_dim);
  l.value_dim = r.integer_or("linear_value_head_dim", 128, 1, max_dim);
  l.conv_width = r.integer_or("linear_conv_kernel_dim", 4, 1, turbo::CausalConvShape::kMaxWidth);
  if (l.value_heads % l.key_heads != 0)
    throw r.bad("linear_num_value_heads", "is not a multiple of linear_num_key_heads");
}

void read_experts(const nlohmann::json& json, ModelConfig& c) {
  const ConfigReader r(json);
  read_expert_counts(r, "num_experts", c);
  c.moe.ffn = r.integer("moe_intermediate_size", 1, ConfigReader::kMaxWidth);
  c.moe.shared_ffn = r.integer("shared_expert_intermediate_size", 1, ConfigReader::kMaxWidth);
  c.moe.shared_gate = true;
}

void read_next(const nlohmann::json& json, ModelConfig& c) {
  read_common(json, c);
  read_experts(json, c);
  const ConfigReader r(json);
  c.moe.router.normalise = r.flag_or("norm_topk_prob", true);
  read_sparse_layers(r, c);
}

void read_moe(const nlohmann::json& json, ModelConfig& c) {
  read_common(json, c);
  read_experts(json, c);
}

void write_common(const ModelConfig& c, nlohmann::json& json) {
  json["attention_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["hidden_act"] = "silu";
  const LinearAttentionConfig& l = c.linear;
  json["linear_num_key_heads"] = l.key_heads;
  json["linear_num_value_heads"] = l.value_heads;
  json["linear_key_head_dim"] = l.key_dim;
  json["linear_value_head_dim"] = l.value_dim;
  json["linear_conv_kernel_dim"] = l.conv_width;
  nlohmann::json types = nlohmann::json::array();
  for (std::int64_t layer = 0; layer < c.layers; ++layer)
    types.push_back(c.has_state(layer) ? kLinear : kFull);
  json["layer_types"] = std::move(types);
  write_rotary_fraction(c, json);
}

void write_moe(const ModelConfig& c, nlohmann::json& json) {
  write_common(c, json);
  json["num_experts"] = c.moe.experts;
  json["num_experts_per_tok"] = c.moe.router.top_k;
  json["moe_intermediate_size"] = c.moe.ffn;
  json["shared_expert_intermediate_size"] = c.moe.shared_ffn;
  json["output_router_logits"] = false;
  json["router_aux_loss_coef"] = c.moe.training.balance_loss;
}

void write_next(const ModelConfig& c, nlohmann::json& json) {
  write_moe(c, json);
  json["norm_topk_prob"] = c.moe.router.normalise;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = c.dense_layers();
}

std::unique_ptr<Block> make_block_of(const ModelConfig& config, engine::ParameterStore& store,
                                     std::int64_t layer, int chunk, DeltaProjection projection) {
  const BlockParameters parameters(config, store, layer, chunk);
  SelfAttentionOptions options = attention_options(config, layer);
  options.head_norm = SelfAttentionOptions::HeadNorm::kBeforeRope;
  return std::make_unique<DecoderBlock>(
      config, parameters,
      [&] {
        return config.has_state(layer) ? gated_delta_net(config, parameters, projection)
                                       : self_attention(config, parameters, options);
      },
      [&]() -> std::unique_ptr<Layer> {
        if (!config.routed(layer)) return feed_forward(config, parameters, config.ffn);
        ExpertParts parts =
            separate_experts(config, ".mlp.gate.weight", ".mlp.experts", "gate_proj", "up_proj", "down_proj");
        parts.shared = ".mlp.shared_expert";
        return mixture_of_experts(config, parameters, parts);
      });
}

std::unique_ptr<Block> make_next_block(const ModelConfig& config, engine::ParameterStore& store,
                                       std::int64_t layer, int chunk) {
  return make_block_of(config, store, layer, chunk, DeltaProjection::kByKeyHead);
}

std::unique_ptr<Block> make_block(const ModelConfig& config, engine::ParameterStore& store,
                                  std::int64_t layer, int chunk) {
  return make_block_of(config, store, layer, chunk, DeltaProjection::kSeparate);
}

Family family(const char* model_type, const char* architecture) {
  Family family{model_type,
                architecture,
                read_common,
                write_common,
                make_block,
                {{"qk_layernorm", "true"},
                 {"apply_layernorm_1p", "true"},
                 {"attention_output_gate", "true"},
                 {"experimental_attention_variant", "gated_delta_net"}}};
  family.partial_rotary = true;
  family.left_out = {"mtp."};
  family.other_keys = {"attn_output_gate", "full_attention_interval", "mamba_ssm_dtype",
                       "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"};
  return family;
}

Family mixture(const char* model_type, const char* architecture) {
  Family mixture = family(model_type, architecture);
  mixture.switches.push_back({"moe_shared_expert_gate", "true"});
  mixture.read = read_moe, mixture.write = write_moe;
  mixture.defaults = kMoeDefaults;
  return mixture;
}

}  // namespace

extern const FamilyEntry kQwen3Next{[]() -> Family {
  Family next = mixture("qwen3_next", "Qwen3NextForCausalLM");
  next.read = read_next, next.write = write_next, next.make_block = make_next_block;
  next.defaults = kNextDefaults;
  return next;
}};

// The complete models are multimodal. This entry describes their text_config.
extern const FamilyEntry kQwen35{[]() -> Family {
  Family dense = family("qwen3_5_text", "Qwen3_5ForCausalLM");
  dense.defaults = kDenseDefaults;
  dense.other_names = {"qwen3_5"};
  return dense;
}};

extern const FamilyEntry kQwen35Moe{[]() -> Family {
  Family moe = mixture("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM");
  moe.other_names = {"qwen3_5_moe"};
  moe.other_keys.emplace_back("mlp_only_layers");
  return moe;
}};

}  // namespace primus
