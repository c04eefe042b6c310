// SmolLM3 (Hugging Face 2025): Llama in which every fourth layer has no rotary positions. These layers may
// have a window.
#include <nlohmann/json.hpp>

#include "lm/model/config_reader.h"
#include "lm/model/families/families.h"

namespace primus {
namespace {

constexpr const char* kLocal = "sliding_attention";
constexpr const char* kDefaults = R"({"num_key_value_heads": 4, "max_position_embeddings": 32768,
  "rope_theta": 2000000.0, "tie_word_embeddings": true})";

void read(const nlohmann::json& json, ModelConfig& config) {
  refuse_unless(json, "attention_bias", false);
  refuse_unless(json, "mlp_bias", false);
  refuse_unless(json, "hidden_act", "silu");
  const ConfigReader r(json);
  read_layers_without_rope(r, config);
  AttentionConfig& attention = config.attention;
  attention.window = r.flag_or("use_sliding_window", false)
                         ? r.integer_or("sliding_window", 0, 1, ConfigReader::kMaxWidth)
                         : 0;
  if (r.find("layer_types")) {
    read_local_layers(json, kLocal, config, nullptr);
  } else if (attention.window > 0) {
    config.set_layers(config.layers_without_rope(), &LayerSpec::local, true);
  }
  // Without use_sliding_window no layer has a window.
  if (attention.window == 0) config.set_layers(&LayerSpec::local, false);
  if (config.local_layers().empty()) attention.window = 0;
}

void write(const ModelConfig& config, nlohmann::json& json) {
  const AttentionConfig& attention = config.attention;
  json["attention_bias"] = json["mlp_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["hidden_act"] = "silu";
  write_layers_without_rope(config, json);
  json["use_sliding_window"] = attention.window > 0;
  json["sliding_window"] = attention.window > 0 ? nlohmann::json(attention.window) : nlohmann::json();
  write_layer_types(config, kLocal, json);
}

}  // namespace

extern const FamilyEntry kSmolLm3{[]() -> Family {
  Family family{"smollm3", "SmolLM3ForCausalLM", read, write, make_llama_block, {}, kDefaults};
  family.other_keys = {"max_window_layers", "no_rope_layer_interval"};
  return family;
}};

}  // namespace primus
