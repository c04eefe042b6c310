// Qwen 3 (Yang et al. 2025): Llama with QK norm before the rotation. Upper layers may have a window.
#include <nlohmann/json.hpp>

#include "lm/model/blocks/layers.h"
#include "lm/model/families/families.h"

namespace primus {
namespace {

constexpr const char* kDefaults =
    R"({"num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32768})";

void read(const nlohmann::json& json, ModelConfig& config) {
  refuse_unless(json, "attention_bias", false);
  refuse_unless(json, "hidden_act", "silu");
  read_sliding_layers(json, config);
}

void write(const ModelConfig& config, nlohmann::json& json) {
  json["attention_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["hidden_act"] = "silu";
  write_sliding_layers(config, json);
}

std::unique_ptr<Block> make_block(const ModelConfig& config, engine::ParameterStore& store,
                                  std::int64_t layer, int chunk) {
  SelfAttentionOptions options = attention_options(config, layer);
  options.head_norm = SelfAttentionOptions::HeadNorm::kBeforeRope;
  return make_llama_block_with(config, store, layer, chunk, options);
}

}  // namespace

extern const FamilyEntry kQwen3{[]() -> Family {
  Family family{"qwen3", "Qwen3ForCausalLM", read, write, make_block, {{"qk_layernorm", "true"}}, kDefaults};
  // The text part of Qwen3-VL rotates text tokens as Qwen 3 does.
  family.other_names = {"qwen3_vl_text", "qwen3_vl"};
  return family;
}};

}  // namespace primus
