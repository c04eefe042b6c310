// The matrix products and the attention of a model's layers, from its architecture. Pure.
#pragma once

#include <vector>

#include "bench/operator_benchmark.h"
#include "lm/model/model_config.h"

namespace primus {

// For `tokens` rows: attention's projections (of latent attention each of its steps), the dense and the
// experts' feed-forward as far as the model has them, and the head. Routers are left out, as in FLOPs. Blocks
// and heads of multi-token prediction are counted in `times`, and their joined inputs' projection is a
// product.
std::vector<ModelProduct> products_of(const ModelConfig& config, std::int64_t tokens);

// The attention of a layer that sees everything before it: one sequence of `sequence` tokens. Of latent
// attention as it is trained, with keys and values of every head.
AttentionCase attention_of(const ModelConfig& config, const std::string& name, std::int64_t sequence);

// The attention of all layers for `batch` sequences: those that see everything, and those with a window or
// with chunks, which are sequences of their own.
struct LayersAttention {
  AttentionCase shape;
  std::int64_t times = 1;  // that a pass through the model computes it
};
std::vector<LayersAttention> attentions_of(const ModelConfig& config, std::int64_t batch,
                                           std::int64_t sequence);

}  // namespace primus
