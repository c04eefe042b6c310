// The matrix products and the attention of a model's layers, derived from its architecture. Pure functions.
#pragma once

#include <vector>

#include "bench/operator_benchmark.h"
#include "lm/model/model_config.h"

namespace primus {

// Returns the matrix products for `tokens` rows: attention projections (all projections of latent attention),
// dense and expert feed-forward layers, and the head. Omits routers, like the FLOP count. `times` includes
// the blocks and heads of multi-token prediction. The projection of a module's concatenated inputs is a
// separate product.
std::vector<ModelProduct> products_of(const ModelConfig& config, std::int64_t tokens);

// Returns the full causal attention of a layer for one sequence of `sequence` tokens. Latent attention is
// given in its training form, with separate keys and values per head.
AttentionCase attention_of(const ModelConfig& config, const std::string& name, std::int64_t sequence);

// The attention of all layers for `batch` sequences, grouped into full, windowed and chunked attention. Each
// chunk counts as a sequence.
struct LayersAttention {
  AttentionCase shape;
  std::int64_t times = 1;  // occurrences per forward pass of the model
};
std::vector<LayersAttention> attentions_of(const ModelConfig& config, std::int64_t batch,
                                           std::int64_t sequence);

// The delta rule of all layers with linear attention, for `batch` sequences; at most one shape with gates per
// head and one with gates per key channel.
struct LayersDeltaRule {
  turbo::DeltaRuleShape shape;
  std::int64_t times = 1;  // occurrences per forward pass of the model
};
std::vector<LayersDeltaRule> delta_rules_of(const ModelConfig& config, std::int64_t batch,
                                            std::int64_t sequence);

}  // namespace primus
