// Declares the parameters of one block, each with its name in the program ("layers.3.attention.qkv") and the
// names of its tensors in published checkpoints ("model.layers.3.self_attn.q_proj.weight").
//
// If ranks share the layers (ParameterStore::mesh), each rank declares its share of a matrix and the place of
// that share in the matrix. Extents in this interface are those of the complete parameter;
// lm/model/mesh_check.h ensures that they divide evenly.
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

// A rank's share of a parameter.
struct Share {
  Shape shape;
  engine::Placement placement;  // place of the share; empty: the complete parameter
};

// One of `ranks` equal shares.
struct EqualShare {
  int ranks = 1, rank = 0;

  std::int64_t size(std::int64_t whole) const { return whole / ranks; }
  std::int64_t begin(std::int64_t whole) const { return rank * size(whole); }
};

// Returns how tensor ranks share the vocabulary, and this rank's share of a matrix with one row per token id.
engine::SharedVocabulary shared_vocabulary(const ModelConfig& config, const engine::ParameterStore& store);
Share vocabulary_share(const engine::SharedVocabulary& vocabulary, std::int64_t cols);

// Replacements in published tensor names, for families whose checkpoints do not use the names that parts of
// blocks declare: {".self_attn.", ".attn."} replaces the first by the second. Pairs apply in order.
using NameReplacements = std::span<const std::pair<std::string_view, std::string_view>>;

class BlockParameters {
 public:
  // Declares in the store's current unit; `chunk` is recorded as the parameters' user. `names` must outlive
  // this object.
  BlockParameters(const ModelConfig& config, engine::ParameterStore& store, std::int64_t layer, int chunk,
                  NameReplacements names = {});

  // `name` and the names of `parts` are relative to the block: ".attention.qkv", ".self_attn.q_proj.weight".
  engine::Parameter& add(const std::string& name, Shape shape, engine::Initializer initializer,
                         std::vector<engine::CheckpointPart> parts) const;
  engine::Parameter& add(const std::string& name, Share share, engine::Initializer initializer,
                         std::vector<engine::CheckpointPart> parts) const;
  // Declares the matrix of a linear layer, which may use fp8 or fp4 products (engine/precision.h).
  engine::Parameter& linear(const std::string& name, Share share, engine::Initializer initializer,
                            std::vector<engine::CheckpointPart> parts) const;
  // Also declares adapters if the model has them for `module` (LoraConfig).
  engine::Parameter& linear(std::string_view module, const std::string& name, Share share,
                            engine::Initializer initializer, std::vector<engine::CheckpointPart> parts) const;
  // Declares the matrices of a layer's experts, [experts, out, in], and their adapters; each expert has its
  // own.
  engine::Parameter& experts(std::string_view module, const std::string& name, Share share,
                             engine::Initializer initializer,
                             std::vector<engine::CheckpointPart> parts) const;
  // Declares a norm's weight of width hidden, or `width`. Its effective initial value is one, so the stored
  // value is one minus ModelConfig::norm_offset().
  engine::Parameter& norm(const std::string& name, const std::string& published) const;
  engine::Parameter& norm(const std::string& name, std::int64_t width,
                          std::vector<engine::CheckpointPart> parts) const;

  // Returns this tensor rank's slice of each run of rows (q, k and v; gate and up) of a matrix [sum of
  // `runs`, cols] or, without cols, of a vector.
  Share rows(const std::vector<std::int64_t>& runs, std::int64_t cols = 0) const;
  // Returns this tensor rank's slice of the columns of a matrix [rows, cols].
  Share columns(std::int64_t rows, std::int64_t cols) const;
  // Returns this rank's experts, and its slice of each run, in [experts, sum of `runs`, cols] or, without
  // cols, of [experts, sum of `runs`].
  Share expert_rows(std::int64_t experts, const std::vector<std::int64_t>& runs, std::int64_t cols = 0) const;
  // Returns this rank's experts, and its slice of the columns, in [experts, rows, cols].
  Share expert_columns(std::int64_t experts, std::int64_t rows, std::int64_t cols) const;

  // The ranks that share a block's matrices; null: not shared.
  comm::Communicator* tensor_group() const { return mesh_ ? mesh_->tensor() : nullptr; }
  // The ranks that share the tokens of a microbatch: tensor and context ranks.
  comm::Communicator* sequence_group() const { return mesh_ ? mesh_->sequence() : nullptr; }
  comm::Communicator* expert_group() const { return mesh_ ? mesh_->experts() : nullptr; }
  EqualShare tensor() const;
  EqualShare experts() const;        // this rank's share of the number of experts
  EqualShare expert_tensor() const;  // this rank's share of the width of each expert

  std::int64_t layer() const { return layer_; }
  // Initializers of matrices. Matrices that write into the residual stream start smaller than others.
  engine::Initializer matrix() const;
  engine::Initializer into_residual() const;

 private:
  // Returns the published name of a name within the block.
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
