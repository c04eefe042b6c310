// How the attention of a model differs from plain grouped-query attention.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace primus {

// Multi-head latent attention: queries, keys and values are products of small latent vectors.
struct LatentConfig {
  std::int64_t q_rank = 0;     // of the queries' latent; 0: queries are projected at once
  std::int64_t kv_rank = 0;    // of the keys' and values' latent; 0: the model has ordinary attention
  std::int64_t nope_dim = 0;   // of q and k per head: without position,
  std::int64_t rope_dim = 0;   // ... and with
  std::int64_t value_dim = 0;  // of v per head

  bool operator==(const LatentConfig&) const = default;
};

struct AttentionConfig {
  // Layers that see only part of what came before: the last `window` positions, or their own chunk of
  // `chunk`.
  std::vector<std::int64_t> local_layers;    // in order
  std::int64_t window = 0, chunk = 0;        // 0: no such limit
  std::vector<std::int64_t> no_rope_layers;  // layers without rotary positions, in order
  // Layers without rotary positions scale their queries by position (turbo/position_scale); attn_scale 0: no.
  std::int64_t floor_scale = 8192;
  double attn_scale = 0;
  bool head_norm = false;  // queries and keys are normed, where the family leaves the choice
  // What primus_gpt leaves open, and other families say once for all their models: biases of queries, keys
  // and values; norms of heads, with weights, before the rotation; learned sinks.
  bool qkv_bias = false, qk_norm = false, sinks = false;
  LatentConfig latent;

  bool local(std::int64_t layer) const { return contains(local_layers, layer); }
  bool rope(std::int64_t layer) const { return !contains(no_rope_layers, layer); }

  bool operator==(const AttentionConfig&) const = default;

 private:
  static bool contains(const std::vector<std::int64_t>& layers, std::int64_t layer) {
    return std::binary_search(layers.begin(), layers.end(), layer);
  }
};

}  // namespace primus
