// Ministral 3 (Mistral AI 2025): Mistral with rotary frequencies stretched by yarn. Beyond the original
// context, queries are scaled by position, as in Llama 4's layers without rotation.
#include <nlohmann/json.hpp>

#include "lm/model/blocks/layers.h"
#include "lm/model/config_reader.h"
#include "lm/model/families/families.h"

namespace primus {
namespace {

constexpr const char* kBeta = "llama_4_scaling_beta";
constexpr const char *kScaling = "rope_scaling", *kParameters = "rope_parameters";
constexpr const char* kDefaults =
    R"({"num_hidden_layers": 34, "hidden_size": 4096, "intermediate_size": 14336,
  "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072,
  "max_position_embeddings": 262144, "rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "yarn",
  "rope_theta": 1000000.0, "factor": 16.0, "original_max_position_embeddings": 16384, "beta_fast": 32.0,
  "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}})";

void read(const nlohmann::json& json, ModelConfig& c) {
  refuse_unless(json, "hidden_act", "silu");
  read_common_window(json, c);
  const ConfigReader r(json);
  if (c.rope_scaling.kind != RopeScaling::Kind::kYarn)
    throw r.not_supported("rope_type", ": this model family supports only yarn",
                          "write \"rope_type\": \"yarn\"");
  const nlohmann::json* const scaling = r.find(kScaling);
  const ConfigReader rope(json.at(scaling && !scaling->empty() ? kScaling : kParameters));
  const std::optional<double> beta = rope.optional_number(kBeta);
  if (!beta || *beta < 0) throw rope.bad(kBeta, "must be a number of 0 or more");
  c.attention.attn_scale = *beta;
  if (*beta > 0) c.attention.floor_scale = c.rope_scaling.original_max_positions;
}

void write(const ModelConfig& c, nlohmann::json& json) {
  json["attention_dropout"] = 0.0;
  json["hidden_act"] = "silu";
  write_common_window(c, json);
  for (const char* key : {kScaling, kParameters}) {
    if (json[key].is_object()) json[key][kBeta] = c.attention.attn_scale;
  }
}

std::unique_ptr<Block> make_block(const ModelConfig& config, engine::ParameterStore& store,
                                  std::int64_t layer, int chunk) {
  SelfAttentionOptions options = attention_options(config, layer);
  options.attn_scale = config.attention.attn_scale;
  options.floor_scale = static_cast<double>(config.attention.floor_scale);
  options.first_scaled = 0;
  return make_llama_block_with(config, store, layer, chunk, options);
}

}  // namespace

extern const FamilyEntry kMinistral3{[]() -> Family {
  Family family{"ministral3", "Ministral3ForCausalLM", read, write, make_block, {}, kDefaults};
  family.other_rope_keys = {kBeta, "max_position_embeddings"};
  return family;
}};

}  // namespace primus
