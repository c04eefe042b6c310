// Declares the parameters of one block, each with its name in the program ("layers.3.attention.qkv") and the
// names of its tensors in published checkpoints ("model.layers.3.self_attn.q_proj.weight").
//
// If ranks share the layers (ParameterStore::mesh), each rank declares only its slice of a matrix, and the
// position of that slice in the matrix. Sizes in this interface are sizes of the complete parameter.
// lm/model/mesh_check.h ensures that ranks divide these sizes evenly.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/parallel/parallel_operators.h"
#include "engine/runtime/parameters.h"
#include "lm/model/model_config.h"

namespace primus {

// The slice of a parameter that a rank holds.
struct Share {
  Shape shape;
  engine::Placement placement;  // position of the slice; empty: the rank holds the complete parameter
};

// One of `ranks` slices of equal size.
struct EqualShare {
  int ranks = 1, rank = 0;

  std::int64_t size(std::int64_t whole) const { return whole / ranks; }
  std::int64_t begin(std::int64_t whole) const { return rank * size(whole); }
};

// Returns how the tensor ranks divide the vocabulary, and this rank's slice of a matrix that has one row per
// token id.
engine::SharedVocabulary shared_vocabulary(const ModelConfig& config, const engine::ParameterStore& store);
Share vocabulary_share(const engine::SharedVocabulary& vocabulary, std::int64_t cols);

// Text replacements in published tensor names, for families whose checkpoints use other names than the layers
// of blocks declare. The pair {".self_attn.", ".attn."} replaces ".self_attn." by ".attn.". Pairs are applied
// in order.
using NameReplacements = std::span<const std::pair<std::string_view, std::string_view>>;

class BlockParameters {
 public:
  // Declares parameters in the store's current unit (ParameterUnit). `chunk` is recorded as the model chunk
  // that uses the parameters. `names` must outlive this object.
  BlockParameters(const ModelConfig& config, engine::ParameterStore& store, std::int64_t layer, int chunk,
                  NameReplacements names = {});

  // Declares a parameter. `name` and the names of `parts` are relative to the block: ".attention.qkv",
  // ".self_attn.q_proj.weight".
  engine::Parameter& add(const std::string& name, Shape shape, engine::Initializer initializer,
                         std::vector<engine::CheckpointPart> parts) const;
  engine::Parameter& add(const std::string& name, Share share, engine::Initializer initializer,
                         std::vector<engine::CheckpointPart> parts) const;
  // Declares the matrix of a linear layer, which may use fp8 or fp4 products (engine/runtime/precision.h).
  engine::Parameter& linear(const std::string& name, Share share, engine::Initializer initializer,
                            std::vector<engine::CheckpointPart> parts) const;
  // Declares a matrix like the other linear(), and also declares LoRA adapters if the model has adapters for
  // `module` (LoraConfig).
  engine::Parameter& linear(std::string_view module, const std::string& name, Share share,
                            engine::Initializer initializer, std::vector<engine::CheckpointPart> parts) const;
  // Declares the matrices of a layer's experts, [experts, out, in]. If the model has adapters for `module`,
  // also declares adapters for each expert.
  engine::Parameter& experts(std::string_view module, const std::string& name, Share share,
                             engine::Initializer initializer,
                             std::vector<engine::CheckpointPart> parts) const;
  // Declares the weight of a norm of size `width`, by default the hidden size. The initial factor is one, so
  // the stored initial value is 1 - ModelConfig::norm_offset().
  engine::Parameter& norm(const std::string& name, const std::string& published) const;
  engine::Parameter& norm(const std::string& name, std::int64_t width,
                          std::vector<engine::CheckpointPart> parts) const;

  // Divides the rows of a matrix [sum of `runs`, cols] among tensor ranks. The matrix is a stack of matrices,
  // such as q, k and v, or gate and up. `runs` are the heights of the stacked matrices. Returns this rank's
  // slice of each stacked matrix. Without `cols`, the parameter is a vector.
  Share rows(const std::vector<std::int64_t>& runs, std::int64_t cols = 0) const;
  // Returns this tensor rank's slice of the columns of a matrix [rows, cols].
  Share columns(std::int64_t rows, std::int64_t cols) const;
  // Returns this rank's slice of an expert matrix [experts, sum of `runs`, cols]. The slice has this rank's
  // experts, and for each expert the rows that rows() chooses. Without `cols`, the parameter is [experts, sum
  // of `runs`].
  Share expert_rows(std::int64_t experts, const std::vector<std::int64_t>& runs, std::int64_t cols = 0) const;
  // Returns this rank's slice of an expert matrix [experts, rows, cols]. The slice has this rank's experts,
  // and this rank's columns of each expert.
  Share expert_columns(std::int64_t experts, std::int64_t rows, std::int64_t cols) const;

  // Returns the ranks over which a block's matrices are divided; null if they are not divided.
  comm::Communicator* tensor_group() const { return mesh_ ? mesh_->tensor() : nullptr; }
  // Returns the ranks over which the tokens of a microbatch are divided: tensor and context ranks.
  comm::Communicator* sequence_group() const { return mesh_ ? mesh_->sequence() : nullptr; }
  comm::Communicator* expert_group() const { return mesh_ ? mesh_->experts() : nullptr; }
  EqualShare tensor() const;
  EqualShare experts() const;        // returns this rank's slice of the experts
  EqualShare expert_tensor() const;  // returns this rank's slice of the width of each expert

  std::int64_t layer() const { return layer_; }
  // These functions return initializers of matrices. A matrix whose output is added to the residual stream
  // starts with smaller values than other matrices.
  engine::Initializer matrix() const;
  engine::Initializer into_residual() const;

 private:
  // Returns the published name of a tensor, given its name within the block.
  std::string published(const std::string& name) const;
  void add_low_rank(engine::Parameter& matrix, const std::string& name,
                    const std::vector<engine::CheckpointPart>& parts) const;
  void add_part_adapters(engine::Parameter& matrix, const std::string& name,
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
