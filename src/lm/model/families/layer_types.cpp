// Which layers of a model attend to a window or a chunk only.
#include <nlohmann/json.hpp>

#include "lm/model/config_reader.h"
#include "lm/model/families/families.h"

namespace primus {
void read_local_layers(const nlohmann::json& json, const char* local, ModelConfig& config,
                       bool (*otherwise)(const nlohmann::json& json, std::int64_t layer)) {
  const auto types = json.find("layer_types");
  const bool listed = types != json.end() && !types->is_null();
  if (listed && (!types->is_array() || static_cast<std::int64_t>(types->size()) != config.layers)) {
    throw ConfigReader(json).bad(
        "layer_types", "must be a list of num_hidden_layers = " + std::to_string(config.layers) + " names");
  }
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    bool is_local = false;
    if (listed) {
      const nlohmann::json& type = (*types)[static_cast<std::size_t>(layer)];
      is_local = type == local;
      if (!is_local && type != "full_attention") {
        throw ConfigReader(json).not_supported("layer_types",
                                               ": " + type.dump() + " is not supported for this model family",
                                               "full_attention and " + std::string(local) + " are");
      }
    } else {
      is_local = otherwise(json, layer);
    }
    if (is_local) config.attention.local_layers.push_back(layer);
  }
}

void write_layer_types(const ModelConfig& config, const char* local, nlohmann::json& json) {
  nlohmann::json types = nlohmann::json::array();
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    types.push_back(config.attention.local(layer) ? local : "full_attention");
  }
  json["layer_types"] = std::move(types);
}

void read_sliding_layers(const nlohmann::json& json, ModelConfig& config) {
  const ConfigReader r(json);
  config.attention.window = r.flag_or("use_sliding_window", false)
                                ? r.integer_or("sliding_window", 4096, 0, ConfigReader::kMaxWidth)
                                : 0;
  if (config.attention.window == 0) return;
  read_local_layers(json, "sliding_attention", config, [](const nlohmann::json& root, std::int64_t layer) {
    return layer >= ConfigReader(root).integer_or("max_window_layers", 28, 0, ConfigReader::kMaxWidth);
  });
}

void write_sliding_layers(const ModelConfig& config, nlohmann::json& json) {
  const AttentionConfig& attention = config.attention;
  json["use_sliding_window"] = attention.window > 0;
  json["sliding_window"] = attention.window > 0 ? nlohmann::json(attention.window) : nlohmann::json();
  json["max_window_layers"] = attention.local_layers.empty() ? config.layers : attention.local_layers.front();
  write_layer_types(config, "sliding_attention", json);
}

}  // namespace primus
