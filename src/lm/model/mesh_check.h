// Whether a model can be spread over a mesh: what ranks share must divide, and what cannot be shared must not
// be.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/context_attention.h"
#include "engine/mesh.h"
#include "lm/model/model_config.h"

namespace primus {

struct MeshMismatch {
  std::string key;   // the experiment's key to change
  std::string what;  // "6 attention heads cannot be shared by 4 ranks"
  std::string next;  // "set tensor_model_parallel_size to 2"
};

// The first reason why the model cannot train on the mesh with microbatches of `micro_batch` sequences of
// `sequence` tokens, which context ranks exchange by `exchange`; none: it can.
std::optional<MeshMismatch> mesh_mismatch(const ModelConfig& config, const engine::MeshShape& shape,
                                          std::int64_t micro_batch, std::int64_t sequence,
                                          engine::ContextParallel::Exchange exchange = {});

}  // namespace primus
