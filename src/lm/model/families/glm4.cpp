// GLM-4 of April 2025 (Zhipu AI): Llama with norms before and after each branch. A part of each head is
// rotated, in neighbouring pairs.
#include <nlohmann/json.hpp>

#include "lm/model/blocks/layers.h"
#include "lm/model/config_reader.h"
#include "lm/model/families/families.h"

namespace primus {
namespace {

constexpr const char* kDefaults = R"({"num_key_value_heads": 2, "head_dim": 128, "attention_bias": true,
  "max_position_embeddings": 131072, "rms_norm_eps": 1.5625e-7, "partial_rotary_factor": 0.5})";
constexpr NormNames kNorms{.after_attention = ".post_self_attn_layernorm.weight",
                           .after_ffn = ".post_mlp_layernorm.weight"};

void read(const nlohmann::json& json, ModelConfig& config) {
  refuse_unless(json, "hidden_act", "silu");
  config.attention.qkv_bias = ConfigReader(json).flag_or("attention_bias", true);
}

void write(const ModelConfig& config, nlohmann::json& json) {
  json["attention_bias"] = config.attention.qkv_bias;
  json["attention_dropout"] = 0.0;
  json["hidden_act"] = "silu";
  write_rotary_fraction(config, json);
}

std::unique_ptr<Block> make_block(const ModelConfig& config, engine::ParameterStore& store,
                                  std::int64_t layer, int chunk) {
  const BlockParameters parameters(config, store, layer, chunk);
  SelfAttentionOptions options = attention_options(config, layer);
  options.qkv_bias = config.attention.qkv_bias;
  options.interleaved = true;
  return std::make_unique<DecoderBlock>(
      config, parameters, [&] { return self_attention(config, parameters, options); },
      [&] {
        return feed_forward(config, parameters, config.ffn, ".ffn", ".mlp", {.gate_up = "gate_up_proj"});
      },
      kNorms);
}

}  // namespace

extern const FamilyEntry kGlm4{[]() -> Family {
  Family family{"glm4", "Glm4ForCausalLM", read, write, make_block};
  family.switches = {{"add_qkv_bias", kEither}, {"rotary_interleaved", "true"}};
  family.defaults = kDefaults;
  family.partial_rotary = true;
  return family;
}};

}  // namespace primus
