// A mixture of SwiGLU experts as the feed-forward branch of a block.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lm/model/blocks/layers.h"

namespace primus {

// Names of the tensors of a mixture in a family's checkpoints, relative to the block.
struct ExpertParts {
  std::string router;            // name of the router's weight [experts, hidden]
  std::string router_bias = {};  // name of the router's bias [experts]; used with MoeConfig::biases
  std::string choice_bias = {};  // name of the bias [experts] that affects only the choice of experts; used
                                 // with MoeConfig::choice_bias
  std::string table = {};        // name of the table [vocab, top_k] of each token's experts; used with
                                 // MoeConfig::hash_layers
  std::vector<engine::CheckpointPart> gate_up;            // tensors in checkpoints that form the parameter
                                                          // [experts, 2*ffn, hidden]: gate, then up
  std::vector<engine::CheckpointPart> gate_up_bias = {};  // tensors in checkpoints that form the bias
                                                          // [experts, 2*ffn]
  std::vector<engine::CheckpointPart> down;               // tensors in checkpoints that form the parameter
                                                          // [experts, hidden, ffn]
  std::vector<engine::CheckpointPart> down_bias = {};     // tensors in checkpoints that form the bias
                                                          // [experts, hidden]
  // Prefix of the shared experts' matrices, and the names of these matrices. With MoeConfig::shared_gate,
  // there is also a tensor <prefix>_gate.
  std::string shared = {};
  FeedForwardNames shared_names = {};
  // With MoeConfig::latent: the projection into the latent [latent, hidden], its norm [latent] if present,
  // and the projection back [hidden, latent]. `hidden` in the shapes above is then the latent's width.
  std::string latent_down = {}, latent_norm = {}, latent_up = {};
};

// Returns the parts for checkpoints with one tensor per expert and matrix: <prefix>.<expert>.<gate>.weight
// and so on.
ExpertParts separate_experts(const ModelConfig& config, std::string router, const std::string& prefix,
                             const std::string& gate, const std::string& up, const std::string& down);

// Creates the router, the experts and, if configured, the shared experts.
std::unique_ptr<Layer> mixture_of_experts(const ModelConfig& config, const BlockParameters& parameters,
                                          const ExpertParts& parts);

}  // namespace primus
