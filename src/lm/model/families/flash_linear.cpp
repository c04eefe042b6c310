// Models of flash-linear-attention (fla) with gated delta networks (Yang et al. 2024, arXiv:2412.06464) or
// Kimi delta attention (arXiv:2510.26692), and SwiGLU feed-forwards. Some layers may have attention:
// grouped-query attention, or latent attention as in AMD Primus's hybrid models. Tensors have fla's names.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lm/model/blocks/layers.h"
#include "lm/model/config_reader.h"
#include "lm/model/families/families.h"
#include "turbo/causal_conv/causal_conv.h"
#include "turbo/delta_rule/delta_rule.h"

namespace primus {
namespace {

// The defaults of fla for keys that config.json omits. Models without attention do not state the number of
// attention heads.
constexpr const char* kGatedDefaults =
    R"({"num_attention_heads": 1, "linear_num_key_heads": 6, "linear_key_head_dim": 256, "expand_v": 2.0})";
constexpr const char* kKimiDefaults =
    R"({"num_attention_heads": 1, "linear_num_key_heads": 16, "linear_key_head_dim": 128, "expand_v": 1.0})";

constexpr std::pair<std::string_view, std::string_view> kNames[] = {{".self_attn.", ".attn."},
                                                                    {".f_a_proj.", ".f_proj.0."},
                                                                    {".f_b_proj.", ".f_proj.1."},
                                                                    {".g_a_proj.", ".g_proj.0."},
                                                                    {".g_b_proj.", ".g_proj.1."},
                                                                    {".q_a_proj.", ".q_proj.0."},
                                                                    {".q_a_layernorm.", ".q_proj.1."},
                                                                    {".q_b_proj.", ".q_proj.2."},
                                                                    {".kv_a_proj_with_mqa.", ".kv_proj.0."},
                                                                    {".kv_a_layernorm.", ".kv_proj.1."},
                                                                    {".kv_b_proj.", ".kv_proj.2."}};

constexpr const char* kAttention = "attn";

// Sets the default width of fla's GatedMLP: 2/3 * hidden_ratio * hidden size, rounded up to a multiple of
// 256.
void prepare(nlohmann::json& root) {
  const ConfigReader r(root);
  if (!r.find("intermediate_size")) {
    const double ratio = r.positive_or("hidden_ratio", 4);
    const auto hidden = static_cast<double>(r.integer("hidden_size", 1, ConfigReader::kMaxWidth));
    const double wide = std::floor(hidden * ratio * 2 / 3);
    if (wide >= static_cast<double>(ConfigReader::kMaxWidth))
      throw r.bad("hidden_ratio", "makes the feed-forward layer too wide");
    root["intermediate_size"] = 256 * ((static_cast<std::int64_t>(wide) + 255) / 256);
  }
  const nlohmann::json* const attention = r.find(kAttention);
  if (attention && attention->is_object() && attention->contains("rope_theta"))
    root["rope_theta"] = attention->at("rope_theta");
}

void read_latents(const ConfigReader& part, ModelConfig& c) {
  const std::int64_t maximum = ConfigReader::kMaxWidth;
  LatentConfig& latent = c.attention.latent;
  latent = {.q_rank = part.integer_or("q_lora_rank", 0, 1, maximum),
            .kv_rank = part.integer("kv_lora_rank", 1, maximum),
            .nope_dim = part.integer("qk_nope_head_dim", 1, maximum),
            .rope_dim = part.integer("qk_rope_head_dim", 1, maximum),
            .value_dim = part.integer("v_head_dim", 1, maximum)};
  if (latent.rope_dim % 2 != 0) throw part.bad("qk_rope_head_dim", "is odd, and rotary positions need pairs");
  c.kv_heads = c.heads;
  c.head_dim = latent.nope_dim + latent.rope_dim;
  c.set_layers(&LayerSpec::attention, &kLatentAttention);
}

// Reads which layers have attention. A layer that `attn` does not list has linear attention of kind `linear`.
void read_attention(const nlohmann::json& json, ModelConfig& c, const LayerKind& linear) {
  const ConfigReader r(json);
  std::vector<std::int64_t> attends;
  if (const nlohmann::json* const found = r.find(kAttention)) {
    if (found->is_array())
      throw r.not_supported(kAttention, ": a list is not supported", "one object for all layers is");
    if (!found->is_object()) throw r.bad(kAttention, "must be an object");
    refuse_unless(*found, "qkv_bias", false);
    refuse_unless(*found, "window_size", nullptr);
    const ConfigReader part(*found);
    attends = part.integers("layers", 0, c.layers - 1);
    std::ranges::sort(attends);
    if (std::ranges::adjacent_find(attends) != attends.end()) throw part.bad("layers", "names a layer twice");
    c.heads = part.integer("num_heads", 1, ConfigReader::kMaxWidth);
    if (part.find("kv_lora_rank")) {
      read_latents(part, c);
    } else {
      c.kv_heads = part.integer_or("num_kv_heads", c.heads, 1, ConfigReader::kMaxWidth);
      if (c.hidden % c.heads != 0) throw part.bad("num_heads", "does not divide hidden_size");
      c.head_dim = c.hidden / c.heads;
    }
  }
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    if (!std::ranges::binary_search(attends, layer)) c.at(layer).attention = &linear;
  }
  if (c.rope_scaling.kind != RopeScaling::Kind::kNone)
    throw r.not_supported("rope_scaling", " is not supported for this model family", "plain rope_theta is");
}

void read(const nlohmann::json& json, ModelConfig& c, const LayerKind& linear) {
  const ConfigReader r(json);
  if (const std::string act = r.text_or("hidden_act", "swish"); act != "swish")
    refuse_unless(json, "hidden_act", "silu");
  refuse_unless(json, "use_short_conv", true);
  refuse_unless(json, "conv_bias", false);
  refuse_unless(json, "allow_neg_eigval", false);
  refuse_unless(json, "attnres_block_size", nullptr);
  refuse_unless(json, "use_l2warp", false);
  LinearAttentionConfig& l = c.linear;
  const std::int64_t max_dim = turbo::DeltaRuleShape::kMaxDim;
  l.key_heads = r.integer("linear_num_key_heads", 1, ConfigReader::kMaxWidth);
  l.value_heads = r.integer_or("linear_num_value_heads", l.key_heads, 1, ConfigReader::kMaxWidth);
  if (l.value_heads % l.key_heads != 0)
    throw r.bad("linear_num_value_heads", "is not a multiple of linear_num_key_heads");
  l.key_dim = r.integer("linear_key_head_dim", 1, max_dim);
  const double wide = static_cast<double>(l.key_dim) * r.positive_or("expand_v", 1);
  if (wide > static_cast<double>(max_dim) || std::abs(wide - std::round(wide)) > 1e-5 * wide || wide < 1)
    throw r.bad("expand_v", "must give an integer value head dimension of at most 256");
  l.value_dim = std::llround(wide);
  l.conv_width = r.integer_or("linear_conv_kernel_dim", 4, 1, turbo::CausalConvShape::kMaxWidth);
  read_attention(json, c, linear);
}

void read_gated(const nlohmann::json& json, ModelConfig& c) {
  refuse_unless(json, "use_gate", true);
  if (ConfigReader(json).text_or("output_gate_activation", "swish") != "swish")
    refuse_unless(json, "output_gate_activation", "silu");
  read(json, c, kGatedDeltaNet);
}

void read_kimi(const nlohmann::json& json, ModelConfig& c) {
  refuse_unless(json, "safe_gate", false);
  read(json, c, kDeltaAttention);
}

nlohmann::json attention_of(const ModelConfig& c) {
  nlohmann::json part = {{"layers", nlohmann::json::array()}, {"num_heads", c.heads}};
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    if (!c.has_state(layer)) part["layers"].push_back(layer);
  }
  part["rope_theta"] = c.rope_theta;
  const LatentConfig& latent = c.attention.latent;
  if (latent.kv_rank == 0) {
    part["num_kv_heads"] = c.kv_heads;
    part["qkv_bias"] = false;
    return part;
  }
  part["q_lora_rank"] = latent.q_rank > 0 ? nlohmann::json(latent.q_rank) : nlohmann::json();
  part["kv_lora_rank"] = latent.kv_rank;
  part["qk_nope_head_dim"] = latent.nope_dim;
  part["qk_rope_head_dim"] = latent.rope_dim;
  part["v_head_dim"] = latent.value_dim;
  return part;
}

void write(const ModelConfig& c, nlohmann::json& json) {
  const LinearAttentionConfig& l = c.linear;
  json["hidden_act"] = "swish";
  json["num_heads"] = l.key_heads;
  json["num_v_heads"] = l.value_heads;
  json["head_dim"] = l.key_dim;
  json["expand_v"] = static_cast<double>(l.value_dim) / static_cast<double>(l.key_dim);
  json["conv_size"] = l.conv_width;
  json["use_short_conv"] = true;
  json["norm_eps"] = c.norm_epsilon;
  json.erase("rms_norm_eps");
  // Removes these keys, which transformers would interpret as rotary settings.
  if (c.rope_scaling.kind == RopeScaling::Kind::kNone)
    json.erase("rope_scaling"), json.erase("rope_parameters");
  const bool attends = static_cast<std::int64_t>(c.layers_keeping(Keeps::kState).size()) < c.layers;
  json[kAttention] = attends ? attention_of(c) : nlohmann::json();
  if (!attends) return;
  for (const char* const key : {"num_attention_heads", "num_key_value_heads", "rope_theta"}) json.erase(key);
}

std::unique_ptr<Block> make_block(const ModelConfig& config, engine::ParameterStore& store,
                                  std::int64_t layer, int chunk) {
  const BlockParameters parameters(config, store, layer, chunk, kNames);
  const auto attention = [&]() -> std::unique_ptr<Layer> {
    if (config.has_state(layer)) {
      return config.spec(layer).attention == &kDeltaAttention
                 ? delta_attention(config, parameters, true)
                 : gated_delta_net(config, parameters, DeltaProjection::kEach);
    }
    if (config.attention.latent.kv_rank == 0)
      return self_attention(config, parameters, attention_options(config, layer));
    return latent_attention(
        config, parameters,
        {.interleaved = false, .own_rope_key = true, .norm_epsilon = config.norm_epsilon});
  };
  return std::make_unique<DecoderBlock>(
      config, parameters, attention, [&] { return feed_forward(config, parameters, config.ffn); },
      NormNames{.attention = ".attn_norm.weight", .ffn = ".mlp_norm.weight"});
}

Family family(const char* model_type, const char* architecture, decltype(Family::read) read) {
  Family family{model_type, architecture, read, write, make_block, {{"multi_latent_attention", kChosen}}};
  family.prepare = prepare;
  family.embedding = "model.embeddings.weight";
  family.aliases = {{"head_dim", "linear_key_head_dim"},
                    {"num_heads", "linear_num_key_heads"},
                    {"num_v_heads", "linear_num_value_heads"},
                    {"conv_size", "linear_conv_kernel_dim"},
                    {"norm_eps", "rms_norm_eps"}};
  family.other_keys = {"allow_neg_eigval",
                       "attn_mode",
                       "attnres_block_size",
                       "conv_bias",
                       "fuse_cross_entropy",
                       "fuse_linear_cross_entropy",
                       "fuse_norm",
                       "fuse_swiglu",
                       "hidden_ratio",
                       "linear_conv_kernel_dim",
                       "linear_key_head_dim",
                       "linear_num_key_heads",
                       "linear_num_value_heads",
                       "num_attention_heads",
                       "num_key_value_heads",
                       "num_v_heads",
                       "rms_norm_eps",
                       "rope_theta",
                       "use_l2warp"};
  return family;
}

}  // namespace

extern const FamilyEntry kGatedDeltaNetOfFla{[]() -> Family {
  Family gated = family("gated_deltanet", "GatedDeltaNetForCausalLM", read_gated);
  gated.defaults = kGatedDefaults;
  for (const char* const key : {"use_gate", "output_gate_activation"}) gated.other_keys.emplace_back(key);
  return gated;
}};

extern const FamilyEntry kKimiDeltaOfFla{[]() -> Family {
  Family kimi = family("kda", "KDAForCausalLM", read_kimi);
  kimi.defaults = kKimiDefaults;
  for (const char* const key : {"safe_gate", "lower_bound"}) kimi.other_keys.emplace_back(key);
  return kimi;
}};

}  // namespace primus
