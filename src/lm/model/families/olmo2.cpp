// OLMo 2 (Ai2 2024, arXiv:2501.00656): Llama with norms after attention and feed-forward instead of before
// them, and QK norm over all heads together.
#include <nlohmann/json.hpp>

#include "lm/model/blocks/layers.h"
#include "lm/model/families/families.h"

namespace primus {
namespace {

constexpr const char* kDefaults = R"({"rms_norm_eps": 1e-5})";
constexpr NormNames kNorms{.attention = {},
                           .ffn = {},
                           .after_attention = ".post_attention_layernorm.weight",
                           .after_ffn = ".post_feedforward_layernorm.weight"};

void read(const nlohmann::json& json, ModelConfig& config) {
  refuse_unless(json, "attention_bias", false);
  refuse_unless(json, "hidden_act", "silu");
  config.attention.wide_norm = true;
}

void write(const ModelConfig&, nlohmann::json& json) {
  json["attention_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["hidden_act"] = "silu";
}

std::unique_ptr<Block> make_block(const ModelConfig& config, engine::ParameterStore& store,
                                  std::int64_t layer, int chunk) {
  const BlockParameters parameters(config, store, layer, chunk);
  SelfAttentionOptions options = attention_options(config, layer);
  options.head_norm = SelfAttentionOptions::HeadNorm::kWhole;
  return std::make_unique<DecoderBlock>(
      config, parameters, [&] { return self_attention(config, parameters, options); },
      [&] { return feed_forward(config, parameters, config.ffn); }, kNorms);
}

}  // namespace

extern const FamilyEntry kOlmo2{[]() -> Family {
  return {"olmo2", "Olmo2ForCausalLM", read, write, make_block, {{"qk_layernorm", "true"}}, kDefaults};
}};

}  // namespace primus
