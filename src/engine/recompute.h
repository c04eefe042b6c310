// Which activations are dropped after the forward pass and computed again in the backward pass.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace primus::engine {

// What an operator costs to repeat, roughly: policies select by class.
enum class OperatorClass : std::uint8_t {
  kEmbedding,
  kNorm,
  kLinear,
  kRope,
  kAttention,
  kActivation,
  kAdd,
  kLoss,
  kRouting,  // of a mixture of experts: scores and choices
  kExperts,  // of a mixture of experts: rows to experts, their products, and back
  kCommunication,
};

struct RecomputePolicy {
  // Selective: outputs of these classes are dropped wherever they stand inside a block (bit = class).
  std::uint32_t classes = 0;
  // Full: every output inside the first `full_layers` blocks is dropped but the residual stream that leaves a
  // group of `layers_per_group` blocks (Megatron's recompute_method: block = groups of one; uniform = all
  // blocks).
  std::int64_t full_layers = 0;
  std::int64_t layers_per_group = 1;
  std::int64_t first_layer = 0;  // where a pipeline's chunk begins: blocks are counted from here
  // Full, for these blocks of the model alone, each a group, instead of the first `full_layers`; ascending.
  std::vector<std::int64_t> layers = {};

  static constexpr std::uint32_t bit(OperatorClass c) { return 1U << static_cast<std::uint32_t>(c); }
  bool full(std::int64_t layer) const {
    if (!layers.empty()) return std::binary_search(layers.begin(), layers.end(), layer);
    return layer >= first_layer && layer - first_layer < full_layers;
  }
  // Whether a group of blocks begins with this one.
  bool begins_group(std::int64_t layer) const {
    return full(layer) && (!layers.empty() || (layer - first_layer) % layers_per_group == 0);
  }
  bool drops(OperatorClass c, std::int64_t layer) const {
    return layer >= 0 && (full(layer) || (classes & bit(c)) != 0);
  }
};

}  // namespace primus::engine
