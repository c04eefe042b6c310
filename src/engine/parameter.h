// One parameter of a model: how it starts, which part of a whole one a rank has, and what it is in published
// checkpoints. Where they are stored: engine/parameters.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/mesh.h"
#include "tensor/tensor.h"

namespace primus::engine {

// How a parameter starts. Random values are drawn by (seed, the parameter's name, element), whatever the
// layout and whichever other parameters there are.
struct Initializer {
  enum class Kind : std::uint8_t {
    kNormal,
    kConstant,
    kLogUniform,
    kGateBias,
    kDistinct
  } kind = Kind::kConstant;
  // The standard deviation, the constant, the least number that may be drawn, or the bound of distinct
  // numbers.
  float value = 0;
  float most = 0;  // of kLogUniform and kGateBias
  static Initializer normal(double std) { return {Kind::kNormal, static_cast<float>(std)}; }
  // Whole numbers in [0, bound), of a row no two alike.
  static Initializer distinct(std::int64_t bound) { return {Kind::kDistinct, static_cast<float>(bound)}; }
  static Initializer constant(double value) { return {Kind::kConstant, static_cast<float>(value)}; }
  // Logarithms of numbers that are uniform between these.
  static Initializer log_uniform(double least, double most) {
    return {Kind::kLogUniform, static_cast<float>(least), static_cast<float>(most)};
  }
  // Biases of gates whose softplus lies between these (turbo::ChannelGateBias).
  static Initializer gate_bias(double least, double most) {
    return {Kind::kGateBias, static_cast<float>(least), static_cast<float>(most)};
  }
};

// Axes of a published tensor that lie in another order than the parameter's: the rows of a part, seen as
// [dims...], have their axes permuted (published axis i is dims[axes[i]]) and are then given `shape`. The
// first axis stays the first. Without dims the elements stay in their order, and only the shape is another.
struct PublishedLayout {
  std::vector<std::int64_t> dims = {};
  std::vector<int> axes = {};
  std::vector<std::int64_t> shape = {};
};

// Which part of a whole parameter a rank's is. Rows are counted as in CheckpointPart; every row loses the
// same columns.
struct Placement {
  // This rank's next `rows` rows are the whole one's from `whole` on.
  struct Rows {
    std::int64_t whole = 0, rows = 0;
  };
  Shape whole = {};             // rank 0: the parameter is the whole one
  std::vector<Rows> rows = {};  // ascending
  std::int64_t column = 0;      // the first one, of a matrix

  bool is_whole() const { return whole.rank() == 0; }
};

// A tensor of the published checkpoint: rows [row, row + rows) of a parameter, which is [rows, last extent]
// when all extents before the last are taken together (a vector's rows are its elements), of the whole one
// where a rank's is a part. Fused projections hold several parts (q, k and v, say), experts some for each of
// them.
struct CheckpointPart {
  std::string name;
  std::int64_t row = 0, rows = 0;
  PublishedLayout layout = {};  // empty: the rows as they are
  // Further tensors that are equal to this one where a checkpoint has them; all are written.
  std::vector<std::string> copies = {};
};

struct ParameterUnit;
struct Parameter;

// Two small matrices that are trained beside a matrix that is not (LoRA; Hu et al. 2021, arXiv:2106.09685).
// With them a product x · Wᵀ is x · Wᵀ + scale (x · downᵀ) · upᵀ.
struct LowRank {
  Parameter* down = nullptr;  // A [rank, in]; null: there are none
  Parameter* up = nullptr;    // B [out, rank]
  float scale = 1;
  float dropout = 0;         // in training: the rate (engine/low_rank.h)
  bool drops_after = false;  // of what B gives; false: of what A reads

  explicit operator bool() const { return down != nullptr; }
};

struct Parameter {
  std::string name;  // "layers.3.attention.qkv"
  Shape shape;       // [out, in], [n], or [experts, out, in]: of this rank's part
  Initializer initializer;
  Placement placement;
  ReduceGroup group = ReduceGroup::kData;
  std::vector<CheckpointPart> parts;
  bool trainable = true;
  bool decay = true;        // false: no weight decay although it is no vector (the biases of experts)
  float norm_offset = 0;    // of the weights of a norm: what is added to them where they multiply
  bool head_norm = false;   // the weight of a norm of heads: decayed where ParameterStore::Layout says so
  bool per_expert = false;  // the first axis is experts, of which a token meets a few
  // Operators read it in fp32, also where others are read in bf16 (routers). Checkpoints hold it in the
  // compute type and its master beside it, as they do for all others.
  bool reads_full_precision = false;
  // Checkpoints hold it in fp32, too. Implies reads_full_precision.
  bool full_precision = false;
  // Checkpoints hold int64. With full_precision, which is exact below 2^24.
  bool whole_numbers = false;
  // A matrix of a linear layer, or the experts' matrices, of this block: products with it follow the
  // PrecisionRecipe. -1: anything else.
  std::int64_t linear_of = -1;
  LowRank low_rank = {};     // of a matrix that linear() and its like multiply with
  bool is_low_rank = false;  // A or B of another one: weights that are loaded may be without
  bool vocabulary = false;   // a row for each token of the vocabulary: the embedding, the head
  bool kernel = false;       // of a convolution: a row for each channel, and no matrix to be multiplied with

  // Set by ParameterStore::allocate, as everything below; null where another stage has the parameter.
  ParameterUnit* unit = nullptr;
  std::int64_t offset = 0;  // of element 0 within the unit
  int rule = 0;             // Layout::rule_of; also where another stage has the parameter
  Tensor value;             // what operators read; absent while the unit is not gathered (DataParallel::use)
  Tensor gradient;  // the unit's gradient_dtype; absent when nothing is trained, and where it has no memory
                    // at present

  int index = 0;               // position among all parameters
  bool decays_vector = false;  // although it is a vector
  // Megatron: not on norms and biases.
  bool decayed() const { return decay && (shape.rank() > 1 || decays_vector); }
  std::int64_t row_elements() const { return shape.rank() > 1 ? shape[shape.rank() - 1] : 1; }
  const Shape& whole_shape() const { return placement.is_whole() ? shape : placement.whole; }

  // Which chunk of the model uses it, once per use, in forward order: fixes the order in which gradients are
  // summed (see WeightGradientQueue).
  std::vector<int> uses;
  std::int64_t turn = 0;      // uses accounted for so far in this step
  bool has_gradient = false;  // the first contribution assigns, later ones accumulate
};

}  // namespace primus::engine
