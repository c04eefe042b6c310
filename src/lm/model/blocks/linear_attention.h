// Functions for the LayerKind of all linear attention layers, which are a short convolution followed by a
// delta rule with one state per value head (config.linear).
#pragma once

#include <string>

#include "lm/model/layer_kind.h"

namespace primus {

double linear_mixing(const ModelConfig& config, std::int64_t layer, double length);
std::vector<SharedExtent> linear_shared_by_tensor_ranks(const ModelConfig& config);
std::optional<MeshMismatch> linear_context_mismatch(const ModelConfig& config, const engine::MeshShape& shape,
                                                    std::int64_t sequence);
// Makes the cache of such a layer. `channel_gates`: whether each key channel has its own gate.
void make_linear_cache(const ModelConfig& config, const CacheRequest& request, bool channel_gates,
                       engine::Phase& phase, engine::KvCacheLayer& entry);
double linear_bytes_read(const ModelConfig& config, std::int64_t layer, std::int64_t length, DType dtype);
std::string linear_summary(const ModelConfig& config);

}  // namespace primus
