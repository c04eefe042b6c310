// The policy that selects activations to drop after the forward pass and recompute in the backward pass.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace primus::engine {

// The class of an operator, by which policies select. Operators of a class have about the same recomputation
// cost.
enum class OperatorClass : std::uint8_t {
  kEmbedding,
  kNorm,
  kLinear,
  kRope,
  kAttention,
  kActivation,
  kAdd,
  kLoss,
  kRouting,  // mixture of experts: scores and choices
  kExperts,  // mixture of experts: dispatch of rows, products, and return
  kCommunication,
};

struct RecomputePolicy {
  // Selective: drops outputs of these classes in every block (bit = class).
  std::uint32_t classes = 0;
  // Full: drops every output inside the first `full_layers` blocks, except the residual stream that leaves a
  // group of `layers_per_group` blocks. (Megatron's recompute_method "block" has groups of one block;
  // "uniform" covers all blocks.)
  std::int64_t full_layers = 0;
  std::int64_t layers_per_group = 1;
  std::int64_t first_layer = 0;  // the first block of a pipeline's chunk: blocks are counted from here
  // Full: exactly these blocks of the model instead of the first `full_layers`, in ascending order. Each
  // block is its own group.
  std::vector<std::int64_t> layers = {};

  static constexpr std::uint32_t bit(OperatorClass c) { return 1U << static_cast<std::uint32_t>(c); }
  bool full(std::int64_t layer) const {
    if (!layers.empty()) return std::binary_search(layers.begin(), layers.end(), layer);
    return layer >= first_layer && layer - first_layer < full_layers;
  }
  // Returns whether this block is the first of a group.
  bool begins_group(std::int64_t layer) const {
    return full(layer) && (!layers.empty() || (layer - first_layer) % layers_per_group == 0);
  }
  bool drops(OperatorClass c, std::int64_t layer) const {
    return layer >= 0 && (full(layer) || (classes & bit(c)) != 0);
  }
};

}  // namespace primus::engine
