// A mixture of SwiGLU experts as the feed-forward branch of a block.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lm/model/blocks/layers.h"

namespace primus {

// Names of a mixture's tensors in a family's checkpoints, relative to the block.
struct ExpertParts {
  std::string router;            // name of the router's weight [experts, hidden]
  std::string router_bias = {};  // name of a tensor [experts]; with MoeConfig::biases
  std::string choice_bias = {};  // name of a tensor [experts]; with MoeConfig::choice_bias
  std::string table = {};        // name of a tensor [vocab, top_k]; with MoeConfig::hash_layers
  std::vector<engine::CheckpointPart> gate_up;            // parts of [experts, 2*ffn, hidden]: gate, then up
  std::vector<engine::CheckpointPart> gate_up_bias = {};  // parts of [experts, 2*ffn]
  std::vector<engine::CheckpointPart> down;               // parts of [experts, hidden, ffn]
  std::vector<engine::CheckpointPart> down_bias = {};     // parts of [experts, hidden]
  // Prefix of the shared experts' matrices, and the names of these matrices. With MoeConfig::shared_gate,
  // <prefix>_gate exists too.
  std::string shared = {};
  FeedForwardNames shared_names = {};
  // With MoeConfig::latent: the projection into the latent [latent, hidden], its norm [latent] if present,
  // and the projection back [hidden, latent]. `hidden` in the shapes above is then the latent's width.
  std::string latent_down = {}, latent_norm = {}, latent_up = {};
};

// Describes one tensor per expert and matrix: <prefix>.<expert>.<gate>.weight and so on.
ExpertParts separate_experts(const ModelConfig& config, std::string router, const std::string& prefix,
                             const std::string& gate, const std::string& up, const std::string& down);

// Creates the router, the experts and, if configured, the shared experts.
std::unique_ptr<Layer> mixture_of_experts(const ModelConfig& config, const BlockParameters& parameters,
                                          const ExpertParts& parts);

}  // namespace primus
