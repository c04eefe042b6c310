// How the attention of a model differs from plain grouped-query attention. Members that an experiment sets
// one for one are in model_fields.def.
#pragma once

#include <cstdint>

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

// Attention over a window and pooled latents (DeepSeek-V4).
struct PooledConfig {
#define POOLED_FIELD(type, member, initial, ...) type member = initial;
#include "lm/model/model_fields.def"
  std::int64_t sparse_ratio = 4, heavy_ratio = 128;  // tokens of a block that is pooled (LayerSpec::Pools)

  bool operator==(const PooledConfig&) const = default;
};

struct AttentionConfig {
#define ATTENTION_FIELD(type, member, initial, ...) type member = initial;
#include "lm/model/model_fields.def"
  // Local layers (LayerSpec) see the last so many positions, or their own chunk of `chunk`; 0: no such limit.
  std::int64_t window = 0;
  // What primus_gpt leaves open, and other families say once for all their models: biases of queries, keys
  // and values; norms of heads, with weights, before the rotation; learned sinks.
  bool qkv_bias = false, qk_norm = false, sinks = false;
  // All queries of a token are normed together, and all its keys (OLMo 2); a family says so.
  bool wide_norm = false;
  // What comes out is gated, by as many columns of the queries' projection (Qwen3-Next); a family says so.
  bool output_gate = false;
  LatentConfig latent;
  IndexerConfig indexer;
  PooledConfig pooled;

  bool operator==(const AttentionConfig&) const = default;
};

}  // namespace primus
