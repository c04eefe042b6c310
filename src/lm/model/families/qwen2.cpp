// Qwen 2 and 2.5 (Yang et al. 2024): Llama with biases on the query, key and value projections. Upper layers
// may have a window.
#include <nlohmann/json.hpp>

#include "lm/model/blocks/layers.h"
#include "lm/model/families/families.h"

namespace primus {
namespace {

constexpr const char* kDefaults = R"({"num_key_value_heads": 32, "max_position_embeddings": 32768})";

void read(const nlohmann::json& json, ModelConfig& config) {
  refuse_unless(json, "hidden_act", "silu");
  read_sliding_layers(json, config);
}

void write(const ModelConfig& config, nlohmann::json& json) {
  json["attention_dropout"] = 0.0;
  json["hidden_act"] = "silu";
  write_sliding_layers(config, json);
}

std::unique_ptr<Block> make_block(const ModelConfig& config, engine::ParameterStore& store,
                                  std::int64_t layer, int chunk) {
  SelfAttentionOptions options = attention_options(config, layer);
  options.qkv_bias = true;
  return make_llama_block_with(config, store, layer, chunk, options);
}

}  // namespace

extern const FamilyEntry kQwen2{[]() -> Family {
  Family family{"qwen2", "Qwen2ForCausalLM", read, write, make_block, {{"add_qkv_bias", "true"}}, kDefaults};
  family.other_keys = {"use_mrope"};
  return family;
}};

}  // namespace primus
