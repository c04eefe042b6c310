// Attention over keys that an indexer selected (turbo/selected_attention, turbo/indexer), on the tape.
//
// In training and in passes without a cache, the key rows are the rows of the microbatch, sequence after
// sequence. Row numbers count from the microbatch's first row. With a cache, row numbers refer to the pages.
#pragma once

#include "engine/operators/operators.h"
#include "turbo/indexer/indexer.h"
#include "turbo/selected_attention/selected_attention.h"

namespace primus::engine {

// Selects the rows that each query attends to: [tokens, top_k] int32, -1 for none. Not differentiable. q:
// [tokens, heads*head_dim], k: [batch*seq_k, head_dim], w: [tokens, heads]. `first_row` and `end_row`:
// [tokens] int32 or empty, as in turbo::IndexerSelect.
Value select_keys(const Value& q, const Value& k, const Value& w, const turbo::IndexerShape& shape,
                  const Value& first_row = {}, const Value& end_row = {});

// For inference: appends k to the pages of the layer's indexer, and selects from all tokens up to now. Only
// `heads`, `head_dim` and `top_k` of `shape` are used.
Value select_cached_keys(const Value& q, const Value& k, const Value& w, const turbo::IndexerShape& shape,
                         const CachedSequences& cache);

// Computes attention of queries [tokens, heads*key_dim] over their selected rows of kv [rows, key_dim]:
// [tokens, heads*value_dim]. Callers need not set `tokens`, `rows` and `selected` of `shape`. `sinks`:
// [heads].
Value selected_attention(const Value& q, const Value& kv, const Value& selected,
                         turbo::SelectedAttentionShape shape, Parameter* sinks = nullptr);

// For inference: appends the new tokens' rows of kv to the layer's pages, and attends to selected rows of the
// pages.
Value selected_cached_attention(const Value& q, const Value& kv, const Value& selected,
                                turbo::SelectedAttentionShape shape, const CachedSequences& cache);

// Multiplies each head by its part of an up-projection [heads*up_dim, rank] (turbo::LatentProject);
// differentiable. The query side and the value side use the same parameter, which counts as two uses
// (Parameter::uses).
Value latent_project(const Value& x, Parameter& up, turbo::LatentProject::Side side,
                     const turbo::LatentShape& shape);

// Applies LayerNorm to the rows of x [T, n]. `bias` and `weight` [n] are not trained.
Value layer_norm(const Value& x, Parameter& weight, Parameter& bias, double epsilon);

}  // namespace primus::engine
