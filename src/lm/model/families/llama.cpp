// Llama 2 and 3 (Touvron et al. 2023; Grattafiori et al. 2024): pre-norm blocks of grouped-query attention
// with rotary positions and a SwiGLU feed-forward.
#include <nlohmann/json.hpp>

#include "lm/model/blocks/layers.h"
#include "lm/model/families/families.h"

namespace primus {
namespace {

void read(const nlohmann::json& json, ModelConfig&) {
  refuse_unless(json, "attention_bias", false);
  refuse_unless(json, "mlp_bias", false);
  refuse_unless(json, "hidden_act", "silu");
  // pretraining_tp > 1 only divides products into parts, which does not change the result.
}

void write(const ModelConfig&, nlohmann::json& json) {
  json["attention_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["mlp_bias"] = false;
  json["hidden_act"] = "silu";
  json["pretraining_tp"] = 1;
}

}  // namespace

std::unique_ptr<Block> make_llama_block(const ModelConfig& config, engine::ParameterStore& store,
                                        std::int64_t layer, int chunk) {
  return make_llama_block_with(config, store, layer, chunk, attention_options(config, layer));
}

std::unique_ptr<Block> make_llama_block_with(const ModelConfig& config, engine::ParameterStore& store,
                                             std::int64_t layer, int chunk,
                                             const SelfAttentionOptions& options) {
  const BlockParameters parameters(config, store, layer, chunk);
  return std::make_unique<DecoderBlock>(
      config, parameters, [&] { return self_attention(config, parameters, options); },
      [&] { return feed_forward(config, parameters, config.ffn); });
}

extern const FamilyEntry kLlama{[]() -> Family {
  return {"llama", "LlamaForCausalLM", read, write, make_llama_block};
}};

}  // namespace primus
