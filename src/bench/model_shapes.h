// The matrix products and the attention of a model's layers, from its architecture. Pure.
#pragma once

#include <vector>

#include "bench/operator_benchmark.h"
#include "lm/model/model_config.h"

namespace primus {

// For `tokens` rows: attention's projections (of latent attention each of its steps), the dense and the
// experts' feed-forward as far as the model has them, and the head. Routers are left out, as in FLOPs.
std::vector<ModelProduct> products_of(const ModelConfig& config, std::int64_t tokens);

// The attention of a layer that sees everything before it: one sequence of `sequence` tokens. Of latent
// attention as it is trained, with keys and values of every head.
AttentionCase attention_of(const ModelConfig& config, const std::string& name, std::int64_t sequence);

}  // namespace primus
