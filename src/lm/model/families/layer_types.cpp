// Reads and writes which layers attend only to a window or chunk, and which layers are short convolutions.
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lm/model/blocks/layers.h"
#include "lm/model/config_reader.h"
#include "lm/model/families/families.h"
#include "turbo/causal_conv/causal_conv.h"

namespace primus {
namespace {

constexpr const char *kFull = "full_attention", *kConvolution = "conv";

}  // namespace

std::vector<std::string> read_layer_types(const nlohmann::json& json, const ModelConfig& config,
                                          const std::vector<std::string>& known) {
  const ConfigReader r(json);
  const nlohmann::json* const types = r.find("layer_types");
  if (!types) return {};
  if (!types->is_array() || static_cast<std::int64_t>(types->size()) != config.layers) {
    throw r.bad("layer_types",
                "must be a list of num_hidden_layers = " + std::to_string(config.layers) + " names");
  }
  std::vector<std::string> names;
  for (const nlohmann::json& type : *types) {
    if (std::ranges::none_of(known, [&](const std::string& name) { return type == name; })) {
      throw r.not_supported("layer_types", ": " + type.dump() + " is not supported for this model family",
                            fmt::format("{} {}", fmt::join(known, " and "), known.size() > 1 ? "are" : "is"));
    }
    names.push_back(type);
  }
  return names;
}

void read_local_layers(const nlohmann::json& json, const char* local, ModelConfig& config,
                       bool (*otherwise)(const nlohmann::json& json, std::int64_t layer)) {
  std::vector<std::string> known = {kFull, local};
  if (config.any_keeps(Keeps::kInputs)) known.emplace_back(kConvolution);
  const std::vector<std::string> types = read_layer_types(json, config, known);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    config.at(layer).local =
        types.empty() ? otherwise(json, layer) : types[static_cast<std::size_t>(layer)] == local;
  }
}

void read_convolutions(const nlohmann::json& json, const char* local, ModelConfig& config) {
  const ConfigReader r(json);
  config.convolution.width = r.integer_or("conv_L_cache", 3, 1, turbo::CausalConvShape::kMaxWidth);
  config.convolution.bias = r.flag_or("conv_bias", false);
  std::vector<std::string> known = {kFull, kConvolution};
  if (local) known.emplace_back(local);
  const std::vector<std::string> types = read_layer_types(json, config, known);
  for (std::size_t layer = 0; layer < types.size(); ++layer) {
    if (types[layer] == kConvolution)
      config.at(static_cast<std::int64_t>(layer)).attention = &kShortConvolution;
  }
}

void write_convolutions(const ModelConfig& config, nlohmann::json& json) {
  json["conv_L_cache"] = config.convolution.width;
  json["conv_bias"] = config.convolution.bias;
}

void write_layer_types(const ModelConfig& config, const char* local, nlohmann::json& json) {
  nlohmann::json types = nlohmann::json::array();
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    types.push_back(config.convolves(layer) ? kConvolution : config.spec(layer).local ? local : kFull);
  }
  json["layer_types"] = std::move(types);
}

void read_common_window(const nlohmann::json& json, ModelConfig& config) {
  config.attention.window = ConfigReader(json).integer_or("sliding_window", 0, 1, ConfigReader::kMaxWidth);
  if (config.attention.window > 0) config.set_layers(&LayerSpec::local, true);
}

void write_common_window(const ModelConfig& config, nlohmann::json& json) {
  const bool window = !config.local_layers().empty();
  json["sliding_window"] = window ? nlohmann::json(config.attention.window) : nlohmann::json();
}

void read_layers_without_rope(const ConfigReader& r, ModelConfig& c) {
  const std::vector<std::int64_t> rope = r.integers("no_rope_layers", 0, 1);
  if (!rope.empty() && static_cast<std::int64_t>(rope.size()) != c.layers) {
    throw r.bad("no_rope_layers", "must have num_hidden_layers entries");
  }
  const std::int64_t interval = r.integer_or("no_rope_layer_interval", 4, 1, c.layers + 4);
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    c.at(layer).rope =
        rope.empty() ? (layer + 1) % interval != 0 : rope[static_cast<std::size_t>(layer)] != 0;
  }
}

void write_layers_without_rope(const ModelConfig& config, nlohmann::json& json) {
  json["no_rope_layers"] = nlohmann::json::array();
  for (std::int64_t layer = 0; layer < config.layers; ++layer)
    json["no_rope_layers"].push_back(config.spec(layer).rope ? 1 : 0);
}

void read_sliding_layers(const nlohmann::json& json, ModelConfig& config) {
  const ConfigReader r(json);
  config.attention.window = r.flag_or("use_sliding_window", false)
                                ? r.integer_or("sliding_window", 4096, 0, ConfigReader::kMaxWidth)
                                : 0;
  if (config.attention.window == 0) {
    read_layer_types(json, config, {kFull, "sliding_attention"});  // throws if the list has another length
    return;
  }
  read_local_layers(json, "sliding_attention", config, [](const nlohmann::json& root, std::int64_t layer) {
    return layer >= ConfigReader(root).integer_or("max_window_layers", 28, 0, ConfigReader::kMaxWidth);
  });
}

void write_sliding_layers(const ModelConfig& config, nlohmann::json& json) {
  const AttentionConfig& attention = config.attention;
  json["use_sliding_window"] = attention.window > 0;
  json["sliding_window"] = attention.window > 0 ? nlohmann::json(attention.window) : nlohmann::json();
  const std::vector<std::int64_t> local = config.local_layers();
  json["max_window_layers"] = local.empty() ? config.layers : local.front();
  write_layer_types(config, "sliding_attention", json);
}

}  // namespace primus
