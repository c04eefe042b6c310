// Checks whether a model can run on a mesh: ranks must divide sizes evenly, and the model's features must
// support the mesh's kinds of parallelism.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/parallel/context_attention.h"
#include "engine/parallel/mesh.h"
#include "lm/model/model_config.h"

namespace primus {

struct MeshMismatch {
  std::string key;   // key that the user should change
  std::string what;  // the problem: "6 attention heads cannot be divided evenly among 4 ranks"
  std::string next;  // the advice: "set tensor_model_parallel_size to 2"
};

// Returns the first reason why the model cannot train on the mesh; nullopt if there is no reason.
// Microbatches have `micro_batch` sequences of `sequence` tokens; `exchange`: how context ranks exchange
// data.
std::optional<MeshMismatch> mesh_mismatch(const ModelConfig& config, const engine::MeshShape& shape,
                                          std::int64_t micro_batch, std::int64_t sequence,
                                          engine::ContextParallel::Exchange exchange = {});

}  // namespace primus
