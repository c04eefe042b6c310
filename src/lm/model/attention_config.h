// How a model's attention differs from plain grouped-query attention. A member that corresponds to exactly
// one setting is declared in the file of blocks/ or families/ that uses it (model_fields.def).
#pragma once

#include <cstdint>

namespace primus {

// Multi-head latent attention (MLA): queries, keys and values are projections of narrow latent vectors.
struct LatentConfig {
#define LATENT_FIELD(type, member, initial, ...) type member = initial;
#include "lm/model/model_fields.def"

  bool operator==(const LatentConfig&) const = default;
};

// The lightning indexer of DeepSeek-V3.2, which selects the tokens that each token attends to. There is no
// indexer if `heads` is 0.
struct IndexerConfig {
#define INDEXER_FIELD(type, member, initial, ...) type member = initial;
#include "lm/model/model_fields.def"
  // Whether a rotary pair of the indexer is two neighbouring columns, as in attention.
  bool interleaved = false;

  bool operator==(const IndexerConfig&) const = default;
};

// Attention over a sliding window and over pooled latents (DeepSeek-V4).
struct PooledConfig {
#define POOLED_FIELD(type, member, initial, ...) type member = initial;
#include "lm/model/model_fields.def"
  std::int64_t sparse_ratio = 4, heavy_ratio = 128;  // tokens per pooled block for LayerSpec::Pools::kSparse
                                                     // and kHeavy

  bool operator==(const PooledConfig&) const = default;
};

struct AttentionConfig {
#define ATTENTION_FIELD(type, member, initial, ...) type member = initial;
#include "lm/model/model_fields.def"
  // Layers with LayerSpec::local attend only to the last `window` positions, or only to their own chunk of
  // `chunk` positions. 0: no such limit.
  std::int64_t window = 0;
  // Whether the query, key and value projections have biases, whether a QK norm with weights precedes the
  // rotation, and whether sinks are learned. Used by families whose models differ in these properties
  // (primus_gpt, GLM-4).
  bool qkv_bias = false, qk_norm = false, sinks = false;
  // The QK norm is computed over all heads of a token together instead of per head (OLMo 2). Set by the
  // family.
  bool wide_norm = false;
  // A gate, computed by extra columns of the query projection, multiplies the attention output (Qwen3-Next).
  // Set by the family.
  bool output_gate = false;
  LatentConfig latent;
  IndexerConfig indexer;
  PooledConfig pooled;

  bool operator==(const AttentionConfig&) const = default;
};

}  // namespace primus
