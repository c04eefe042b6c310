#include "lm/model/layer_kind.h"

#include <fmt/format.h>

#include <cmath>

#include "base/check.h"

namespace primus {

#include "lm/model/layer_kinds.def"  // generated: kAllLayerKind

std::span<const LayerKind* const> layer_kinds() { return kAllLayerKind; }

const LayerKind& kind_of(const ModelConfig& config, std::int64_t layer, LayerKind::Branch branch) {
  const LayerKind* found = nullptr;
  for (const LayerKind* kind : layer_kinds()) {
    if (kind->branch == branch && kind->is(config, layer)) found = kind;
  }
  PRIMUS_CHECK("kind_of", found != nullptr);
  return *found;
}

std::vector<LayerProduct> layer_products(const ModelConfig& config, std::int64_t layer) {
  std::vector<LayerProduct> all;
  for (const LayerKind::Branch branch : {LayerKind::Branch::kAttention, LayerKind::Branch::kFeedForward}) {
    for (const LayerProduct& product : kind_of(config, layer, branch).products(config, layer))
      all.push_back(product);
  }
  return all;
}

double keys_up_to(double most, double length) {
  return most < length ? most - most * most / (2 * length) : length / 2;
}

double keys_per_query(const AttentionConfig& a, std::int64_t layer, double length) {
  const double chunk = static_cast<double>(a.chunk);
  if (a.local(layer) && a.window > 0) return keys_up_to(static_cast<double>(a.window), length);
  if (a.local(layer) && a.chunk > 0 && chunk < length) {
    const double whole = std::floor(length / chunk), rest = length - whole * chunk;
    return (whole * chunk * chunk + rest * rest) / (2 * length);
  }
  return length / 2;
}

std::optional<MeshMismatch> slices_too_short(std::int64_t width, const char* key,
                                             const engine::MeshShape& shape, std::int64_t sequence) {
  const std::int64_t reach = width - 1, slices = 2 * std::int64_t{shape.context};
  if (sequence / slices >= reach) return std::nullopt;
  return MeshMismatch{
      "seq_length",
      fmt::format("slices of {} tokens of a sequence (seq_length), two for each of {} context ranks, are "
                  "shorter than the {} tokens that a short convolution ({}) looks back",
                  sequence / slices, shape.context, reach, key),
      fmt::format("set seq_length to {}", reach * slices)};
}

}  // namespace primus
