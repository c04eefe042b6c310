// Checks whether a model supports batch-invariant forward passes (DeviceSpec::batch_invariant). In such
// passes, a token's logits have the same bits whether the token is read in training, in a prompt or one at a
// time, alone or in a batch. Free functions; thread-safe.
#pragma once

#include <optional>
#include <string>

#include "engine/parallel/mesh.h"
#include "lm/model/model_config.h"

namespace primus {

// Returns why the logits of a token depend on the tokens that are computed with it, or on whether keys come
// from a cache; nullopt if they do not on a batch-invariant device. `training`: whether settings that act
// only in training passes count, too.
std::optional<std::string> batch_variance(const ModelConfig& config, bool training);

// Returns why GPUs compute this model with other orders of additions for other batches, although CPUs do not;
// nullopt if they do not. `compute`: the type of activations. `shape`: how the ranks share the model.
std::optional<std::string> batch_variance_on_gpus(const ModelConfig& config, DType compute,
                                                  const engine::MeshShape& shape = {});

// Throws Error(kUnsupported) with the reason of batch_variance(config, false), if there is one. Unless
// `device` (DeviceSpec::kind) is "cpu", batch_variance_on_gpus() counts, too.
void check_batch_invariant(const ModelConfig& config, const std::string& device, DType compute);

}  // namespace primus
