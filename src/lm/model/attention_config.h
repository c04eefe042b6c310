// How a model's attention differs from plain grouped-query attention. Members that map one to one to a
// setting are declared in the files of blocks/ and families/ that use them (model_fields.def).
#pragma once

#include <cstdint>

namespace primus {

// Multi-head latent attention (MLA): queries, keys and values are projected from small latent vectors.
struct LatentConfig {
#define LATENT_FIELD(type, member, initial, ...) type member = initial;
#include "lm/model/model_fields.def"

  bool operator==(const LatentConfig&) const = default;
};

// The lightning indexer of DeepSeek-V3.2, which selects the tokens that each token attends to. heads 0: no
// indexer.
struct IndexerConfig {
#define INDEXER_FIELD(type, member, initial, ...) type member = initial;
#include "lm/model/model_fields.def"
  // Whether the indexer rotates neighbouring pairs of columns (interleaved), as attention does.
  bool interleaved = false;

  bool operator==(const IndexerConfig&) const = default;
};

// Attention over a sliding window and over pooled latents (DeepSeek-V4).
struct PooledConfig {
#define POOLED_FIELD(type, member, initial, ...) type member = initial;
#include "lm/model/model_fields.def"
  std::int64_t sparse_ratio = 4, heavy_ratio = 128;  // number of tokens per pooled block (LayerSpec::Pools)

  bool operator==(const PooledConfig&) const = default;
};

struct AttentionConfig {
#define ATTENTION_FIELD(type, member, initial, ...) type member = initial;
#include "lm/model/model_fields.def"
  // Local layers (LayerSpec::local) attend to the last `window` positions or to their own chunk of `chunk`
  // positions. A value of 0 means no such limit.
  std::int64_t window = 0;
  // For families in which these differ between models (primus_gpt, GLM-4): whether the query, key and value
  // projections have biases, whether a QK norm with weights precedes the rotation, and whether sinks are
  // learned.
  bool qkv_bias = false, qk_norm = false, sinks = false;
  // The QK norm is over all heads of a token at once, not per head (OLMo 2). Set by the family.
  bool wide_norm = false;
  // A gate multiplies the attention output; it comes from extra columns of the query projection (Qwen3-Next).
  // Set by the family.
  bool output_gate = false;
  LatentConfig latent;
  IndexerConfig indexer;
  PooledConfig pooled;

  bool operator==(const AttentionConfig&) const = default;
};

}  // namespace primus
