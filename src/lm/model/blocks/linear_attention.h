// What the kinds of linear attention share: members of LayerKind, of a state for each head of values that a
// delta rule keeps behind a short convolution (config.linear).
#pragma once

#include "lm/model/layer_kind.h"

namespace primus {

double linear_mixing(const ModelConfig& config, std::int64_t layer, double length);
std::vector<SharedExtent> linear_shared_by_tensor_ranks(const ModelConfig& config);
std::optional<MeshMismatch> linear_context_mismatch(const ModelConfig& config, const engine::MeshShape& shape,
                                                    std::int64_t sequence);
void make_linear_cache(const ModelConfig& config, const CacheRequest& request, engine::Phase& phase,
                       engine::KvCacheLayer& entry);

}  // namespace primus
