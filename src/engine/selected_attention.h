// Attention over keys that an indexer selected (turbo/selected_attention, turbo/indexer), on the tape.
//
// In training and in passes without a cache, rows of keys are those of the microbatch, sequence after
// sequence, and lists name rows of all of it. With a cache, rows are those of its pages.
#pragma once

#include "engine/operators.h"
#include "turbo/indexer/indexer.h"
#include "turbo/selected_attention/selected_attention.h"

namespace primus::engine {

// The rows that each query attends to: [tokens, top_k] int32, -1 for none. Nothing that goes in gets a
// gradient. q: [tokens, heads*head_dim], k: [batch*seq_k, head_dim], w: [tokens, heads]. `first_row` and
// `end_row`: [tokens] int32 or empty, as turbo::IndexerSelect's.
Value select_keys(const Value& q, const Value& k, const Value& w, const turbo::IndexerShape& shape,
                  const Value& first_row = {}, const Value& end_row = {});

// Inference: appends k to the pages of the layer's indexer, and selects from the tokens so far. Of `shape`
// heads, head_dim and top_k are read.
Value select_cached_keys(const Value& q, const Value& k, const Value& w, const turbo::IndexerShape& shape,
                         const CachedSequences& cache);

// Attention of queries [tokens, heads*key_dim] over the rows of kv [rows, key_dim] that are selected for
// them: [tokens, heads*value_dim]. `shape.tokens`, `rows` and `selected` are set here. `sinks`: [heads].
Value selected_attention(const Value& q, const Value& kv, const Value& selected,
                         turbo::SelectedAttentionShape shape, Parameter* sinks = nullptr);

// Inference: appends the new tokens' rows of kv to the pages of the layer, whose rows are selected.
Value selected_cached_attention(const Value& q, const Value& kv, const Value& selected,
                                turbo::SelectedAttentionShape shape, const CachedSequences& cache);

// Per head the product with its part of an up-projection [heads*up_dim, rank] (turbo::LatentProject), with
// gradients. Both sides use the same parameter, which counts as a use each (Parameter::uses).
Value latent_project(const Value& x, Parameter& up, turbo::LatentProject::Side side,
                     const turbo::LatentShape& shape);

// LayerNorm of rows [T, n]; `bias` and `weight` [n] are not trained.
Value layer_norm(const Value& x, Parameter& weight, Parameter& bias, double epsilon);

}  // namespace primus::engine
