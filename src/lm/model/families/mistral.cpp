// Mistral (Jiang et al. 2023, arXiv:2310.06825): Llama with an optional window in all layers. In Ministral,
// each layer may have a window or not.
#include <nlohmann/json.hpp>

#include "lm/model/config_reader.h"
#include "lm/model/families/families.h"

namespace primus {
namespace {

constexpr const char* kLocal = "sliding_attention";
constexpr const char* kDefaults =
    R"({"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096})";

void read(const nlohmann::json& json, ModelConfig& config) {
  refuse_unless(json, "hidden_act", "silu");
  read_common_window(json, config);
}

void write(const ModelConfig& config, nlohmann::json& json) {
  json["attention_dropout"] = 0.0;
  json["hidden_act"] = "silu";
  write_common_window(config, json);
}

void read_ministral(const nlohmann::json& json, ModelConfig& config) {
  refuse_unless(json, "hidden_act", "silu");
  config.attention.window = ConfigReader(json).integer_or("sliding_window", 0, 1, ConfigReader::kMaxWidth);
  read_local_layers(json, kLocal, config, [](const nlohmann::json& root, std::int64_t) {
    return ConfigReader(root).find("sliding_window") != nullptr;
  });
  if (config.attention.window == 0 && !config.local_layers().empty())
    throw ConfigReader(json).bad("sliding_window", "is missing, but layer_types has layers with a window");
  if (config.local_layers().empty()) config.attention.window = 0;
}

void write_ministral(const ModelConfig& config, nlohmann::json& json) {
  json["attention_dropout"] = 0.0;
  json["hidden_act"] = "silu";
  json["sliding_window"] =
      config.attention.window > 0 ? nlohmann::json(config.attention.window) : nlohmann::json();
  write_layer_types(config, kLocal, json);
}

}  // namespace

extern const FamilyEntry kMistral{[]() -> Family {
  return {"mistral", "MistralForCausalLM", read, write, make_llama_block, {}, kDefaults};
}};

extern const FamilyEntry kMinistral{[]() -> Family {
  return {"ministral", "MinistralForCausalLM", read_ministral, write_ministral, make_llama_block, {},
          kDefaults};
}};

}  // namespace primus
