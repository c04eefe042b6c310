// The feed-forward part of a block as a mixture of SwiGLU experts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lm/model/blocks/layers.h"

namespace primus {

// Where a family's checkpoints have the tensors of a mixture, by names within the block.
struct ExpertParts {
  std::string router;                                     // [experts, hidden]
  std::string router_bias = {};                           // [experts]; where MoeConfig::biases is set
  std::string choice_bias = {};                           // [experts]; where MoeConfig::choice_bias is set
  std::string table = {};                                 // [vocab, top_k]; of MoeConfig::hash_layers
  std::vector<engine::CheckpointPart> gate_up;            // of [experts, 2*ffn, hidden]: gate, then up
  std::vector<engine::CheckpointPart> gate_up_bias = {};  // of [experts, 2*ffn]
  std::vector<engine::CheckpointPart> down;               // of [experts, hidden, ffn]
  std::vector<engine::CheckpointPart> down_bias = {};     // of [experts, hidden]
  // Prefix of the shared experts' matrices, what these are called, and <prefix>_gate where
  // MoeConfig::shared_gate is set.
  std::string shared = {};
  FeedForwardNames shared_names = {};
  // Where MoeConfig::latent is set: into the latent [latent, hidden], its norm [latent] where it has one, and
  // back [hidden, latent]. `hidden` of the experts' matrices is the latent then.
  std::string latent_down = {}, latent_norm = {}, latent_up = {};
};

// One tensor for each expert and matrix: <prefix>.<expert>.<gate>.weight and so on.
ExpertParts separate_experts(const ModelConfig& config, std::string router, const std::string& prefix,
                             const std::string& gate, const std::string& up, const std::string& down);

extern const LayerKind kMixture;
// Router, experts, and shared experts where the configuration has them.
std::unique_ptr<Layer> mixture_of_experts(const ModelConfig& config, const BlockParameters& parameters,
                                          const ExpertParts& parts);

}  // namespace primus
