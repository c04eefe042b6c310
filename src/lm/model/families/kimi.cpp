// Kimi Linear (arXiv:2510.26692): Kimi delta attention in most layers, DeepSeek's latent attention without
// positions in the others, and DeepSeek-V3's experts. Kimi K3 adds gates with a lower bound, output gates,
// SiTU instead of SwiGLU, experts that work in a latent, and attention residuals.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "lm/model/blocks/attention_residual.h"
#include "lm/model/blocks/mixture_of_experts.h"
#include "lm/model/config_reader.h"
#include "lm/model/families/deepseek.h"
#include "lm/model/families/families.h"
#include "turbo/attention_residual/attention_residual.h"
#include "turbo/causal_conv/causal_conv.h"
#include "turbo/delta_rule/delta_rule.h"

namespace primus {
namespace {

constexpr const char* kDefaults =
    R"({"max_position_embeddings": 1048576, "rms_norm_eps": 1e-5, "q_lora_rank": null, "kv_lora_rank": 512,
  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256,
  "n_shared_experts": 1, "moe_intermediate_size": 1024, "routed_scaling_factor": 2.446, "num_experts_per_tok": 8,
  "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "num_key_value_heads": 32, "head_dim": 64})";
constexpr const char* kLinear = "linear_attn_config";
constexpr double kMaxCap = 1e6;

// Kimi's names of keys that DeepSeek names differently.
constexpr std::array<std::pair<const char*, const char*>, 6> kNames = {{
    {"num_experts", "n_routed_experts"},
    {"num_experts_per_token", "num_experts_per_tok"},
    {"num_shared_experts", "n_shared_experts"},
    {"num_expert_group", "n_group"},
    {"moe_renormalize", "norm_topk_prob"},
    {"model_max_length", "max_position_embeddings"},
}};

std::vector<std::int64_t> other_layers(std::int64_t layers, const std::vector<std::int64_t>& chosen) {
  std::vector<std::int64_t> others;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    if (!std::binary_search(chosen.begin(), chosen.end(), layer)) others.push_back(layer);
  }
  return others;
}

// Returns the layers whose entry in a list of names is `name`; all other entries must be `other`.
std::vector<std::int64_t> named_layers(const ConfigReader& r, const char* key, const ModelConfig& c,
                                       const char* name, const char* other) {
  const nlohmann::json& names = *r.find(key);
  if (!names.is_array() || static_cast<std::int64_t>(names.size()) != c.layers)
    throw r.bad(key, "must be a list of num_hidden_layers = " + std::to_string(c.layers) + " names");
  std::vector<std::int64_t> layers;
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    const nlohmann::json& type = names[static_cast<std::size_t>(layer)];
    if (type == name) {
      layers.push_back(layer);
    } else if (type != other) {
      throw r.not_supported(key, ": " + type.dump() + " is not supported for this model family",
                            std::string(name) + " and " + other + " are");
    }
  }
  return layers;
}

// Reads layer numbers of linear_attn_config, which begin at 1.
std::vector<std::int64_t> numbered_layers(const ConfigReader& part, const char* key, const ModelConfig& c) {
  std::vector<std::int64_t> layers = part.integers(key, 1, c.layers);
  std::ranges::sort(layers);
  if (std::ranges::adjacent_find(layers) != layers.end()) throw part.bad(key, "names a layer twice");
  for (std::int64_t& layer : layers) --layer;
  return layers;
}

void read_linear_layers(const ConfigReader& r, const ConfigReader& part, ModelConfig& c) {
  std::vector<std::int64_t> linear;
  if (r.find("layer_types")) {
    linear = named_layers(r, "layer_types", c, "linear_attention", "full_attention");
  } else if (part.find("kda_layers") && part.find("full_attn_layers")) {
    linear = numbered_layers(part, "kda_layers", c);
    if (numbered_layers(part, "full_attn_layers", c) != other_layers(c.layers, linear))
      throw part.bad("full_attn_layers", "and kda_layers together must name each layer exactly once");
  } else {
    for (std::int64_t layer = 0; layer < c.layers; ++layer) {
      if (layer == 0 || layer % 4 != 0) linear.push_back(layer);
    }
  }
  c.set_layers(linear, &LayerSpec::attention, &kDeltaAttention);
}

void read_linear(const nlohmann::json& json, ModelConfig& c) {
  const ConfigReader r(json);
  const nlohmann::json none = nlohmann::json::object(), *const found = r.find(kLinear);
  if (found && !found->is_object()) throw r.bad(kLinear, "must be an object");
  const ConfigReader part(found ? *found : none);
  // Keys in the object take precedence over keys outside of it.
  const auto size = [&](const char* in_part, const char* alternative, std::int64_t otherwise,
                        std::int64_t maximum) {
    return part.integer_or(in_part, r.integer_or(alternative, otherwise, 1, maximum), 1, maximum);
  };
  LinearAttentionConfig& linear = c.linear;
  linear.key_dim = linear.value_dim =
      size("head_dim", "linear_head_dim", 128, turbo::DeltaRuleShape::kMaxDim);
  linear.key_heads = linear.value_heads = size("num_heads", "linear_num_heads", 32, 1 << 14);
  linear.conv_width =
      size("short_conv_kernel_size", "linear_conv_kernel_dim", 4, turbo::CausalConvShape::kMaxWidth);
  read_linear_layers(r, part, c);
}

void read_dense_layers(const nlohmann::json& json, ModelConfig& c) {
  const ConfigReader r(json);
  std::vector<std::int64_t> dense;
  if (r.find("mlp_layer_types")) {
    dense = named_layers(r, "mlp_layer_types", c, "dense", "sparse");
  } else {
    const std::int64_t count = r.integer_or("first_k_dense_replace", 1, 0, ConfigReader::kMaxWidth);
    for (std::int64_t layer = 0; layer < std::min(count, c.layers); ++layer) dense.push_back(layer);
  }
  if (c.moe.experts > 0) c.set_layers(&LayerSpec::feed_forward, &kMixture);
  c.set_layers(dense, &LayerSpec::feed_forward, &kDenseFeedForward);
}

void read_common(const nlohmann::json& json, ModelConfig& c) {
  refuse_unless(json, "mla_use_nope", true);
  refuse_unless(json, "moe_router_activation_func", "sigmoid");
  refuse_unless(json, "topk_method", "noaux_tc");
  deepseek::read_parts(json, c);
  if (c.moe.experts == 0) throw ConfigReader(json).bad("n_routed_experts", "is missing");
  // rope_theta occurs in files but has no effect.
  if (c.rope_scaling.kind != RopeScaling::Kind::kNone)
    throw ConfigReader(json).not_supported("rope_scaling", " is not supported for this model family",
                                           "it has no positions");
  c.attention.latent.nope = true;
  turbo::RouterRule& router = c.moe.router;
  router.scoring = turbo::RouterRule::Scoring::kSigmoid;
  router.group_score = turbo::RouterRule::GroupScore::kTwoBest;
  deepseek::read_groups(json, c);
  router.normalise = ConfigReader(json).flag_or("norm_topk_prob", true);
  c.moe.choice_bias = true;
  read_linear(json, c);
  read_dense_layers(json, c);
}

void write_common(const ModelConfig& c, nlohmann::json& json) {
  deepseek::write_common(c, json);
  for (const auto& [name, of_deepseek] : kNames) {
    json[name] = json[of_deepseek];
    json.erase(of_deepseek);
  }
  for (const char* const key : {"rope_scaling", "rope_parameters"}) {
    if (c.rope_scaling.kind == RopeScaling::Kind::kNone) json.erase(key);
  }
  json["mla_use_nope"] = true;
  json["moe_router_activation_func"] = "sigmoid";
  const auto from_one = [](std::vector<std::int64_t> layers) {
    for (std::int64_t& layer : layers) ++layer;
    return layers;
  };
  const std::vector<std::int64_t> linear = c.layers_keeping(Keeps::kState);
  json[kLinear] = {{"head_dim", c.linear.key_dim},
                   {"num_heads", c.linear.value_heads},
                   {"short_conv_kernel_size", c.linear.conv_width},
                   {"kda_layers", from_one(linear)},
                   {"full_attn_layers", from_one(other_layers(c.layers, linear))}};
  nlohmann::json types = nlohmann::json::array();
  for (std::int64_t layer = 0; layer < c.layers; ++layer)
    types.push_back(c.routed(layer) ? "sparse" : "dense");
  json["mlp_layer_types"] = std::move(types);
}

void read(const nlohmann::json& json, ModelConfig& c) {
  refuse_unless(json, "hidden_act", "silu");
  refuse_unless(json, "mla_use_output_gate", false);
  refuse_unless(json, "attn_res_block_size", 0);
  refuse_unless(json, "routed_expert_hidden_size", nullptr);
  // transformers never ties the head of this family. If an exported folder had no head, transformers would
  // initialize it randomly.
  refuse_unless(json, "tie_word_embeddings", false);
  read_common(json, c);
}

double cap(const ConfigReader& r, const char* key, double otherwise) {
  const double value = r.number_or(key, 0);
  if (value < 0 || value > kMaxCap) throw r.bad(key, "must be between 0 and 1000000");
  return value == 0 ? otherwise : value;
}

void read_k3(const nlohmann::json& json, ModelConfig& c) {
  read_common(json, c);
  const ConfigReader r(json);
  const std::string activation = r.text_or("hidden_act", "situ");
  if (activation == "situ") {
    c.situ_beta = cap(r, "activation_situ_beta", 1);
    c.situ_linear_beta = cap(r, "activation_situ_linear_beta", 0);
  } else if (activation != "silu") {
    throw r.not_supported("hidden_act", ": " + activation + " is not supported for this model family",
                          "situ and silu are");
  }
  c.attention.latent.output_gate = r.flag_or("mla_use_output_gate", true);
  c.residual_block = r.integer_or("attn_res_block_size", 0, 0, 1 << 14);
  if (c.residual_block > 0 && c.streams() > turbo::ResidualCandidates::kMax)
    throw r.bad("attn_res_block_size", "makes more than " +
                                           std::to_string(turbo::ResidualCandidates::kMax - 1) +
                                           " checkpoints of the residual stream");
  c.moe.latent = r.integer_or("routed_expert_hidden_size", 0, 1, ConfigReader::kMaxWidth);
  c.moe.latent_norm = c.moe.latent > 0 && r.flag_or("latent_moe_use_norm", false);
  const nlohmann::json none = nlohmann::json::object(), *const found = r.find(kLinear);
  const ConfigReader part(found ? *found : none);
  c.linear.gate_lower_bound = part.number_or("gate_lower_bound", 0);
  if (c.linear.gate_lower_bound > 0 || c.linear.gate_lower_bound < -1e3)
    throw part.bad("gate_lower_bound", "must be between -1000 and 0");
  c.linear.full_rank_gate = part.flag_or("use_full_rank_gate", true);
}

void write_k3(const ModelConfig& c, nlohmann::json& json) {
  write_common(c, json);
  json["hidden_act"] = c.situ_beta > 0 ? "situ" : "silu";
  if (c.situ_beta > 0) json["activation_situ_beta"] = c.situ_beta;
  if (c.situ_linear_beta > 0) json["activation_situ_linear_beta"] = c.situ_linear_beta;
  json["mla_use_output_gate"] = c.attention.latent.output_gate;
  json["attn_res_block_size"] = c.residual_block;
  json["routed_expert_hidden_size"] = c.moe.latent > 0 ? nlohmann::json(c.moe.latent) : nlohmann::json();
  json["latent_moe_use_norm"] = c.moe.latent_norm;
  if (c.linear.gate_lower_bound != 0) json[kLinear]["gate_lower_bound"] = c.linear.gate_lower_bound;
  json[kLinear]["use_full_rank_gate"] = c.linear.full_rank_gate;
}

std::unique_ptr<Block> make_block(const ModelConfig& config, engine::ParameterStore& store,
                                  std::int64_t layer, int chunk) {
  const BlockParameters parameters(config, store, layer, chunk);
  const auto attention = [&] {
    return config.has_state(layer) ? delta_attention(config, parameters)
                                   : latent_attention(config, parameters);
  };
  const auto of_ffn = [&]() -> std::unique_ptr<Layer> {
    if (!config.routed(layer)) return feed_forward(config, parameters, config.ffn);
    const std::string at = ".block_sparse_moe";
    ExpertParts parts = separate_experts(config, at + ".gate.weight", at + ".experts", "w1", "w3", "w2");
    parts.choice_bias = at + ".gate.e_score_correction_bias";
    parts.shared = at + ".shared_experts";
    parts.latent_down = at + ".routed_expert_down_proj.weight";
    parts.latent_norm = at + ".routed_expert_norm.weight";
    parts.latent_up = at + ".routed_expert_up_proj.weight";
    return mixture_of_experts(config, parameters, parts);
  };
  // The block of a multi-token prediction module is plain, because it has no checkpoints of a residual
  // stream.
  if (config.residual_block == 0 || layer >= config.layers)
    return std::make_unique<DecoderBlock>(config, parameters, attention, of_ffn);
  // Published models also have these parameters before the first attention, where there is nothing to mix.
  if (layer == 0) store.leave_out("model.layers.0.self_attention_res_");
  return std::make_unique<AttentionResidualBlock>(config, parameters, attention, of_ffn);
}

Family family(const char* model_type, const char* architecture) {
  Family family{model_type, architecture, read, write_common, make_block, deepseek::switches(), kDefaults};
  for (FamilySwitch& own : family.switches) own.value = kEither;
  for (const auto& [name, of_deepseek] : kNames) family.aliases.emplace_back(name, of_deepseek);
  family.aliases.emplace_back("num_local_experts", "n_routed_experts");
  family.other_keys = deepseek::other_keys();
  for (const char* const key : {"max_position_embeddings", "n_routed_experts", "rope_scaling", "layer_types",
                                "linear_conv_kernel_dim", "linear_head_dim", "linear_num_heads",
                                "moe_router_activation_func", "topk_method", "use_grouped_topk"})
    family.other_keys.emplace_back(key);
  return family;
}

}  // namespace

extern const FamilyEntry kKimiLinear{
    []() -> Family { return family("kimi_linear", "KimiLinearForCausalLM"); }};

extern const FamilyEntry kKimiK3{[]() -> Family {
  Family k3 = family("kimi_k3", "KimiK3ForCausalLM");
  k3.read = read_k3;
  k3.write = write_k3;
  for (const char* const key : {"activation_situ_beta", "activation_situ_linear_beta"})
    k3.other_keys.emplace_back(key);
  k3.make_stream_ends = attention_residual_ends;
  return k3;
}};

}  // namespace primus
