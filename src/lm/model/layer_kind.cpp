#include "lm/model/layer_kind.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lm/model/blocks/layers.h"

namespace primus {

std::span<const LayerKind* const> layer_kinds() { return kAllLayerKind; }

std::vector<const LayerKind*> kinds_of(const ModelConfig& config) {
  std::vector<const LayerKind*> kinds;
  for (const LayerKind* kind : layer_kinds()) {
    bool has = false;
    for (std::int64_t layer = 0; layer < config.layers && !has; ++layer) {
      const LayerSpec& spec = config.spec(layer);
      has = spec.attention == kind || spec.feed_forward == kind;
    }
    if (has) kinds.push_back(kind);
  }
  return kinds;
}

std::vector<LayerProduct> layer_products(const ModelConfig& config, std::int64_t layer) {
  const LayerSpec& spec = config.spec(layer);
  std::vector<LayerProduct> all = spec.attention->products(config, layer);
  for (const LayerProduct& product : spec.feed_forward->products(config, layer)) all.push_back(product);
  return all;
}

Keeps ModelConfig::keeps(std::int64_t layer) const { return spec(layer).attention->keeps; }

bool ModelConfig::attends(std::int64_t layer) const {
  const Keeps what = keeps(layer);
  return what == Keeps::kKeys || what == Keeps::kLatents || what == Keeps::kPooled;
}

bool ModelConfig::routed(std::int64_t layer) const { return spec(layer).feed_forward->routes; }

std::vector<std::int64_t> ModelConfig::layers_keeping(Keeps what) const {
  return layers_where([what](const LayerSpec& spec) { return spec.attention->keeps == what; });
}

bool ModelConfig::any_keeps(Keeps what) const {
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    if (keeps(layer) == what) return true;
  }
  return false;
}

std::vector<std::int64_t> ModelConfig::dense_layers() const {
  if (moe.experts == 0) return {};
  return layers_where([](const LayerSpec& spec) { return !spec.feed_forward->routes; });
}

double keys_up_to(double maximum, double length) {
  return maximum < length ? maximum - maximum * maximum / (2 * length) : length / 2;
}

double keys_per_query(const ModelConfig& config, std::int64_t layer, double length) {
  const AttentionConfig& a = config.attention;
  const bool local = config.spec(layer).local;
  const double chunk = static_cast<double>(a.chunk);
  if (local && a.window > 0) return keys_up_to(static_cast<double>(a.window), length);
  if (local && a.chunk > 0 && chunk < length) {
    const double whole = std::floor(length / chunk), rest = length - whole * chunk;
    return (whole * chunk * chunk + rest * rest) / (2 * length);
  }
  return length / 2;
}

std::int64_t keys_of_next(const ModelConfig& config, std::int64_t layer, std::int64_t length) {
  if (!config.spec(layer).local) return length;
  const AttentionConfig& a = config.attention;
  const std::int64_t seen = a.chunk > 0 ? (length - 1) % a.chunk + 1 : length;
  return a.window > 0 ? std::min(seen, a.window) : seen;
}

std::optional<MeshMismatch> slices_too_short(std::int64_t width, const char* key,
                                             const engine::MeshShape& shape, std::int64_t sequence) {
  const std::int64_t reach = width - 1, slices = 2 * std::int64_t{shape.context};
  if (sequence / slices >= reach) return std::nullopt;
  return MeshMismatch{
      "seq_length",
      fmt::format("slices of {} tokens of a sequence (seq_length), two for each of {} context ranks, are "
                  "shorter than the {} tokens that a short convolution ({}) reads back",
                  sequence / slices, shape.context, reach, key),
      fmt::format("set seq_length to {}", reach * slices)};
}

}  // namespace primus
