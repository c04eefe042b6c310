// Checks whether a model can be spread over a mesh: sizes that ranks share must divide evenly, and features
// that do not support a kind of parallelism must not be used with it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/context_attention.h"
#include "engine/mesh.h"
#include "lm/model/model_config.h"

namespace primus {

struct MeshMismatch {
  std::string key;   // key of the experiment to change
  std::string what;  // the problem: "6 attention heads cannot be divided evenly among 4 ranks"
  std::string next;  // the advice: "set tensor_model_parallel_size to 2"
};

// Returns the first reason why the model cannot train on the mesh with microbatches of `micro_batch`
// sequences of `sequence` tokens, if context ranks exchange data by `exchange`; nullopt if the model can
// train on the mesh.
std::optional<MeshMismatch> mesh_mismatch(const ModelConfig& config, const engine::MeshShape& shape,
                                          std::int64_t micro_batch, std::int64_t sequence,
                                          engine::ContextParallel::Exchange exchange = {});

}  // namespace primus
