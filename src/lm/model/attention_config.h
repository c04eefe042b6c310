// How the attention of a model differs from plain grouped-query attention. Members that an experiment sets
// one for one are in model_fields.def.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace primus {

// Multi-head latent attention: queries, keys and values are products of small latent vectors.
struct LatentConfig {
#define LATENT_FIELD(type, member, initial, ...) type member = initial;
#include "lm/model/model_fields.def"

  bool operator==(const LatentConfig&) const = default;
};

// What selects the tokens that each token attends to (DeepSeek-V3.2's lightning indexer); heads 0: nothing.
struct IndexerConfig {
#define INDEXER_FIELD(type, member, initial, ...) type member = initial;
#include "lm/model/model_fields.def"
  bool interleaved = false;  // rotary pairs of its heads are neighbours, as those of attention are

  bool operator==(const IndexerConfig&) const = default;
};

struct AttentionConfig {
#define ATTENTION_FIELD(type, member, initial, ...) type member = initial;
#include "lm/model/model_fields.def"
  // Layers that see only part of what came before: the last `window` positions, or their own chunk of
  // `chunk`.
  std::vector<std::int64_t> local_layers;    // in order
  std::int64_t window = 0;                   // 0: no such limit
  std::vector<std::int64_t> no_rope_layers;  // layers without rotary positions, in order
  // What primus_gpt leaves open, and other families say once for all their models: biases of queries, keys
  // and values; norms of heads, with weights, before the rotation; learned sinks.
  bool qkv_bias = false, qk_norm = false, sinks = false;
  // All queries of a token are normed together, and all its keys (OLMo 2); a family says so.
  bool wide_norm = false;
  // What comes out is gated, by as many columns of the queries' projection (Qwen3-Next); a family says so.
  bool output_gate = false;
  LatentConfig latent;
  // DeepSeek-V4: layers that see pooled latents beside their window, the heavy ones all of so many tokens
  // each, the sparse ones those that an indexer chooses. index_heads is above 0 in such models alone.
  std::vector<std::int64_t> sparse_layers, heavy_layers;  // in order
  std::int64_t sparse_ratio = 4, heavy_ratio = 128;
  IndexerConfig indexer;

  bool compressed() const { return index_heads > 0; }
  bool sparse(std::int64_t layer) const { return contains(sparse_layers, layer); }
  // Tokens of a block that is pooled; 0: the layer has its window alone.
  std::int64_t pooled_ratio(std::int64_t layer) const {
    return sparse(layer) ? sparse_ratio : contains(heavy_layers, layer) ? heavy_ratio : 0;
  }
  bool local(std::int64_t layer) const { return contains(local_layers, layer); }
  bool rope(std::int64_t layer) const { return !contains(no_rope_layers, layer); }

  bool operator==(const AttentionConfig&) const = default;

 private:
  static bool contains(const std::vector<std::int64_t>& layers, std::int64_t layer) {
    return std::binary_search(layers.begin(), layers.end(), layer);
  }
};

}  // namespace primus
