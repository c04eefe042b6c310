// The matrix products of a model's layers, from its architecture. Pure.
#pragma once

#include <vector>

#include "bench/operator_benchmark.h"
#include "lm/model/model_config.h"

namespace primus {

// For `tokens` rows: attention's projections (of latent attention each of its steps), the dense and the
// experts' feed-forward as far as the model has them, and the head. Routers are left out, as in FLOPs.
std::vector<ModelProduct> products_of(const ModelConfig& config, std::int64_t tokens);

}  // namespace primus
