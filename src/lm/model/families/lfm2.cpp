// LFM2 (Liquid AI 2025, arXiv:2511.23404): most blocks have a gated short convolution, and the others have
// attention with QK norm. LFM2-MoE has a mixture of experts in all blocks except the first few, with sigmoid
// scores and a bias that affects only the choice of experts.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lm/model/blocks/layers.h"
#include "lm/model/blocks/mixture_of_experts.h"
#include "lm/model/config_reader.h"
#include "lm/model/families/families.h"
#include "lm/model/layer_kind.h"

namespace primus {
namespace {

constexpr const char* kDefaults =
    R"({"num_key_value_heads": 8, "max_position_embeddings": 128000, "rms_norm_eps": 1e-5,
  "rope_theta": 1000000.0, "tie_word_embeddings": true})";
constexpr const char* kMoeDefaults =
    R"({"num_key_value_heads": 8, "max_position_embeddings": 128000, "rms_norm_eps": 1e-5,
  "rope_theta": 1000000.0, "tie_word_embeddings": true,
  "num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 1792, "num_dense_layers": 2})";
constexpr FeedForwardNames kMatrices{.gate = "w1", .up = "w3", .down = "w2"};
constexpr double kMaxScale = 1e6;

// If block_auto_adjust_ff_dim is true or absent, intermediate_size is the width of a feed-forward without a
// gate. The actual width is 2/3 of intermediate_size, times block_ffn_dim_multiplier, rounded up to a
// multiple of block_multiple_of.
void adjust_width(const ConfigReader& r, ModelConfig& c) {
  if (!r.flag_or("block_auto_adjust_ff_dim", true)) return;
  const std::int64_t maximum = ConfigReader::kMaxWidth,
                     multiple = r.integer_or("block_multiple_of", 256, 1, maximum);
  double width = std::floor(2 * static_cast<double>(c.ffn) / 3);
  width = std::floor(r.positive_or("block_ffn_dim_multiplier", 1) * width);
  const double multiples = std::ceil(width / static_cast<double>(multiple));
  if (multiples < 1 || multiples * static_cast<double>(multiple) > static_cast<double>(maximum))
    throw r.bad("block_ffn_dim_multiplier", "gives an unsupported feed-forward width");
  c.ffn = static_cast<std::int64_t>(multiples) * multiple;
}

// If `layer_types` is missing, full_attn_idxs lists the layers with attention. If both are missing, all
// layers have attention.
void read_attention_layers(const nlohmann::json& json, ModelConfig& c) {
  const ConfigReader r(json);
  if (r.find("layer_types") || !r.find("full_attn_idxs")) return;
  const std::vector<std::int64_t> attend = r.integers("full_attn_idxs", 0, c.layers - 1);
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    if (std::ranges::find(attend, layer) == attend.end()) c.at(layer).attention = &kShortConvolution;
  }
}

void read(const nlohmann::json& json, ModelConfig& c) {
  refuse_unless(json, "hidden_act", "silu");
  read_convolutions(json, nullptr, c);
  read_attention_layers(json, c);
  adjust_width(ConfigReader(json), c);
}

void read_moe(const nlohmann::json& json, ModelConfig& c) {
  refuse_unless(json, "hidden_act", "silu");
  read_convolutions(json, nullptr, c);
  const ConfigReader r(json);
  if (!r.find("layer_types")) throw r.bad("layer_types", "is missing");
  read_expert_counts(r, "num_experts", c);
  c.moe.ffn = r.integer("moe_intermediate_size", 1, ConfigReader::kMaxWidth);
  c.moe.choice_bias = r.flag_or("use_expert_bias", true);
  turbo::RouterRule& router = c.moe.router;
  router.scoring = turbo::RouterRule::Scoring::kSigmoid;
  router.normalise = r.flag_or("norm_topk_prob", true);
  router.min_sum = 1e-6F;
  const double scale = r.positive_or("routed_scaling_factor", 1);
  if (scale > kMaxScale) throw r.bad("routed_scaling_factor", "is above 1000000");
  router.scale = static_cast<float>(scale);
  const std::int64_t dense = r.integer("num_dense_layers", 0, ConfigReader::kMaxWidth);
  for (std::int64_t layer = 0; layer < std::min(dense, c.layers); ++layer)
    c.at(layer).feed_forward = &kDenseFeedForward;
}

void write(const ModelConfig& c, nlohmann::json& json) {
  write_convolutions(c, json);
  write_layer_types(c, "", json);
  json["norm_eps"] = c.norm_epsilon;
  json["block_auto_adjust_ff_dim"] = false;
}

void write_moe(const ModelConfig& c, nlohmann::json& json) {
  write_convolutions(c, json);
  write_layer_types(c, "", json);
  json["norm_eps"] = c.norm_epsilon;
  json["num_experts"] = c.moe.experts;
  json["num_experts_per_tok"] = c.moe.router.top_k;
  json["moe_intermediate_size"] = c.moe.ffn;
  json["num_dense_layers"] = c.dense_layers().size();
  json["use_expert_bias"] = c.moe.choice_bias;
  json["norm_topk_prob"] = c.moe.router.normalise;
  json["routed_scaling_factor"] = shortest(c.moe.router.scale);
  json["output_router_logits"] = false;
}

std::unique_ptr<Block> make_block(const ModelConfig& config, engine::ParameterStore& store,
                                  std::int64_t layer, int chunk) {
  const BlockParameters parameters(config, store, layer, chunk);
  SelfAttentionOptions options = attention_options(config, layer);
  options.head_norm = SelfAttentionOptions::HeadNorm::kBeforeRope;
  options.out_name = "out_proj", options.norm_name = "layernorm";
  return std::make_unique<DecoderBlock>(
      config, parameters,
      [&] {
        return config.convolves(layer) ? kShortConvolution.make(config, parameters)
                                       : self_attention(config, parameters, options);
      },
      [&]() -> std::unique_ptr<Layer> {
        const std::string at = ".feed_forward";
        if (!config.routed(layer)) return feed_forward(config, parameters, config.ffn, ".ffn", at, kMatrices);
        ExpertParts parts = separate_experts(config, at + ".gate.weight", at + ".experts", "w1", "w3", "w2");
        parts.choice_bias = at + ".expert_bias";
        return mixture_of_experts(config, parameters, parts);
      },
      NormNames{.attention = ".operator_norm.weight", .ffn = ".ffn_norm.weight"});
}

Family family(const char* model_type, const char* architecture) {
  Family family{model_type, architecture, read, write, make_block, {{"qk_layernorm", "true"}}, kDefaults};
  family.final_norm = "model.embedding_norm.weight";
  family.aliases = {{"norm_eps", "rms_norm_eps"}, {"tie_embedding", "tie_word_embeddings"}};
  return family;
}

}  // namespace

extern const FamilyEntry kLfm2{[]() -> Family {
  Family dense = family("lfm2", "Lfm2ForCausalLM");
  dense.aliases.emplace_back("block_ff_dim", "intermediate_size");
  // Keys for the width of the feed-forward, and keys of the original trainer. The latter repeat other keys or
  // describe the initialization.
  dense.other_keys = {"block_dim",
                      "block_ff_dim",
                      "block_ffn_dim_multiplier",
                      "block_mlp_init_scale",
                      "block_multiple_of",
                      "block_norm_eps",
                      "block_out_init_scale",
                      "block_use_swiglu",
                      "block_use_xavier_init",
                      "conv_dim",
                      "conv_dim_out",
                      "conv_use_xavier_init",
                      "full_attn_idxs",
                      "hidden_act",
                      "num_heads",
                      "tie_embedding",
                      "use_pos_enc"};
  return dense;
}};

extern const FamilyEntry kLfm2Moe{[]() -> Family {
  Family mixture = family("lfm2_moe", "Lfm2MoeForCausalLM");
  mixture.read = read_moe;
  mixture.write = write_moe;
  mixture.defaults = kMoeDefaults;
  mixture.other_keys = {"hidden_act", "tie_embedding"};
  return mixture;
}};

}  // namespace primus
