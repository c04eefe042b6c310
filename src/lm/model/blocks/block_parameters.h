// Declares the parameters of one block, each with its name in the program ("layers.3.attention.qkv") and the
// names of its tensors in published checkpoints ("model.layers.3.self_attn.q_proj.weight").
//
// Where ranks share the layers (ParameterStore::mesh), each declares its share of a matrix and says which one
// it is. Extents here are always those of the whole; lm/model/mesh_check.h makes sure that they divide.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/parallel_operators.h"
#include "engine/parameters.h"
#include "lm/model/model_config.h"

namespace primus {

// What a rank has of a whole parameter.
struct Share {
  Shape shape;
  engine::Placement placement;  // empty: all of it
};

// One of `ranks` equal shares.
struct EqualShare {
  int ranks = 1, rank = 0;

  std::int64_t size(std::int64_t whole) const { return whole / ranks; }
  std::int64_t begin(std::int64_t whole) const { return rank * size(whole); }
};

// How tensor ranks share the vocabulary, and this rank's share of a matrix with a row for each token.
engine::SharedVocabulary shared_vocabulary(const ModelConfig& config, const engine::ParameterStore& store);
Share vocabulary_share(const engine::SharedVocabulary& vocabulary, std::int64_t cols);

// Where a family's checkpoints have other names than the parts of blocks declare: {".self_attn.", ".attn."}
// replaces the first by the second in the name of each tensor. Pairs apply in order.
using NameReplacements = std::span<const std::pair<std::string_view, std::string_view>>;

class BlockParameters {
 public:
  // Declares in the store's current unit; `chunk` is noted as the parameters' user. `names` outlives it.
  BlockParameters(const ModelConfig& config, engine::ParameterStore& store, std::int64_t layer, int chunk,
                  NameReplacements names = {});

  // `name` and the names of `parts` are those within the block: ".attention.qkv",
  // ".self_attn.q_proj.weight".
  engine::Parameter& add(const std::string& name, Shape shape, engine::Initializer initializer,
                         std::vector<engine::CheckpointPart> parts) const;
  engine::Parameter& add(const std::string& name, Share share, engine::Initializer initializer,
                         std::vector<engine::CheckpointPart> parts) const;
  // A matrix of a linear layer, whose products may be in fp8 or fp4 (engine/precision.h).
  engine::Parameter& linear(const std::string& name, Share share, engine::Initializer initializer,
                            std::vector<engine::CheckpointPart> parts) const;
  // The same with adapters, where the model has them for `module` (LoraConfig).
  engine::Parameter& linear(std::string_view module, const std::string& name, Share share,
                            engine::Initializer initializer, std::vector<engine::CheckpointPart> parts) const;
  // The matrices of a layer's experts, [experts, out, in], likewise: each expert has adapters of its own.
  engine::Parameter& experts(std::string_view module, const std::string& name, Share share,
                             engine::Initializer initializer,
                             std::vector<engine::CheckpointPart> parts) const;
  // A norm's weight, [hidden] or as wide as said: one at first, or what is one with
  // ModelConfig::norm_offset().
  engine::Parameter& norm(const std::string& name, const std::string& published) const;
  engine::Parameter& norm(const std::string& name, std::int64_t width,
                          std::vector<engine::CheckpointPart> parts) const;

  // Of a matrix [sum of `runs`, cols] or, without cols, a vector: this tensor rank's slice of each run of
  // rows (q, k and v; gate and up).
  Share rows(const std::vector<std::int64_t>& runs, std::int64_t cols = 0) const;
  // Of a matrix [rows, cols]: its slice of the columns.
  Share columns(std::int64_t rows, std::int64_t cols) const;
  // Of [experts, sum of `runs`, cols] or, without cols, [experts, sum of `runs`]: of this rank's experts, its
  // slice of each run.
  Share expert_rows(std::int64_t experts, const std::vector<std::int64_t>& runs, std::int64_t cols = 0) const;
  // Of [experts, rows, cols]: of this rank's experts, its slice of the columns.
  Share expert_columns(std::int64_t experts, std::int64_t rows, std::int64_t cols) const;

  // The ranks that a block is shared among, and which slice this one has; null: it is alone.
  comm::Communicator* tensor_group() const { return mesh_ ? mesh_->tensor() : nullptr; }
  // The ranks that hold the tokens of a microbatch together: tensor and context.
  comm::Communicator* sequence_group() const { return mesh_ ? mesh_->sequence() : nullptr; }
  comm::Communicator* expert_group() const { return mesh_ ? mesh_->experts() : nullptr; }
  EqualShare tensor() const;
  EqualShare experts() const;        // of the experts
  EqualShare expert_tensor() const;  // of the width of each

  std::int64_t layer() const { return layer_; }
  // How matrices start: those that write into the residual stream smaller than the others.
  engine::Initializer matrix() const;
  engine::Initializer into_residual() const;

 private:
  // A name within the block, as the checkpoints have it.
  std::string published(const std::string& name) const;
  void add_low_rank(engine::Parameter& matrix, const std::string& name,
                    const std::vector<engine::CheckpointPart>& parts) const;

  engine::ParameterStore& store_;
  engine::Mesh* mesh_;
  std::int64_t layer_, layers_, hidden_;
  double init_std_;
  float norm_offset_;
  int chunk_;
  NameReplacements names_;
  LoraConfig lora_;
};

}  // namespace primus
