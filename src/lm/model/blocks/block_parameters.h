// Declares the parameters of one block, each with its name in the program ("layers.3.attention.qkv") and the
// names of its tensors in published checkpoints ("model.layers.3.self_attn.q_proj.weight").
#pragma once

#include <string>
#include <vector>

#include "engine/parameters.h"
#include "lm/model/model_config.h"

namespace primus {

class BlockParameters {
 public:
  // Declares in the store's current unit; `chunk` is noted as the parameters' user.
  BlockParameters(const ModelConfig& config, engine::ParameterStore& store, std::int64_t layer, int chunk);

  // `name` and the names of `parts` are those within the block: ".attention.qkv",
  // ".self_attn.q_proj.weight".
  engine::Parameter& add(const std::string& name, Shape shape, engine::Initializer initializer,
                         std::vector<engine::CheckpointPart> parts) const;
  // A norm's weight, [hidden], ones at first.
  engine::Parameter& norm(const std::string& name, const std::string& published) const;

  std::int64_t layer() const { return layer_; }
  // How matrices start: those that write into the residual stream smaller than the others.
  engine::Initializer matrix() const;
  engine::Initializer into_residual() const;

 private:
  engine::ParameterStore& store_;
  std::int64_t layer_, layers_, hidden_;
  double init_std_;
  int chunk_;
};

}  // namespace primus
