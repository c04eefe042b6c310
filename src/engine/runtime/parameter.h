// One parameter of a model: its initial values, a rank's part of it, and its tensors in published
// checkpoints. For storage see engine/runtime/parameters.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/parallel/mesh.h"
#include "engine/runtime/four_bit_storage.h"
#include "tensor/tensor.h"

namespace primus::engine {

// Initial values of a parameter. Random values depend only on the seed, the parameter's name and the element,
// not on the layout or on other parameters.
struct Initializer {
  enum class Kind : std::uint8_t {
    kNormal,
    kConstant,
    kLogUniform,
    kGateBias,
    kDistinct
  } kind = Kind::kConstant;
  // kNormal: the standard deviation. kConstant: the constant. kLogUniform, kGateBias: the minimum. kDistinct:
  // the exclusive bound.
  float value = 0;
  float maximum = 0;  // maximum of kLogUniform and kGateBias
  // If loaded weights lack the parameter, it keeps its initial value, without an error. Example: the head of
  // a reward model that starts from a language model.
  bool if_missing = false;
  static Initializer normal(double std) { return {Kind::kNormal, static_cast<float>(std)}; }
  // Random integers in [0, bound), without repetitions within a row.
  static Initializer distinct(std::int64_t bound) { return {Kind::kDistinct, static_cast<float>(bound)}; }
  static Initializer constant(double value) { return {Kind::kConstant, static_cast<float>(value)}; }
  // Values whose logarithm is uniform between log(minimum) and log(maximum).
  static Initializer log_uniform(double minimum, double maximum) {
    return {Kind::kLogUniform, static_cast<float>(minimum), static_cast<float>(maximum)};
  }
  // Gate biases whose softplus lies between `minimum` and `maximum` (turbo::ChannelGateBias).
  static Initializer gate_bias(double minimum, double maximum) {
    return {Kind::kGateBias, static_cast<float>(minimum), static_cast<float>(maximum)};
  }
};

// How the axes of a published tensor are permuted. The rows of a part are viewed as [dims...], their axes are
// permuted (published axis i is dims[axes[i]]), and the result is reshaped to `shape`. The first axis stays
// first. Empty `dims`: only the shape changes.
struct PublishedLayout {
  std::vector<std::int64_t> dims = {};
  std::vector<int> axes = {};
  std::vector<std::int64_t> shape = {};
};

// A rank's part of a complete parameter: some rows, each with the same range of columns. Rows are counted as
// in CheckpointPart.
struct Placement {
  // A range of `rows` rows. `whole` is the index of its first row within the complete parameter.
  struct Rows {
    std::int64_t whole = 0, rows = 0;
  };
  // the shape of the complete parameter; without extents if this rank has the complete parameter
  Shape whole = {};
  std::vector<Rows> rows = {};  // ascending
  std::int64_t column = 0;      // the first column, for a matrix

  bool is_whole() const { return whole.rank() == 0; }
};

// A tensor of the published checkpoint: rows [row, row + rows) of a parameter viewed as [rows, last extent]
// (a vector's rows are its elements). Rows are counted in the complete parameter, not in a rank's part. Fused
// projections hold several parts (for example q, k and v). Tensors of experts hold one or more parts per
// expert.
struct CheckpointPart {
  std::string name;
  std::int64_t row = 0, rows = 0;
  PublishedLayout layout = {};  // empty: rows are not rearranged
  // Names of further tensors with the same contents. Saving writes all of them. Loading does not require
  // them.
  std::vector<std::string> copies = {};
};

struct ParameterUnit;
struct Parameter;

// Two small matrices that are trained next to a frozen matrix (LoRA; Hu et al. 2021, arXiv:2106.09685). The
// matrices change a product x · Wᵀ to x · Wᵀ + scale (x · downᵀ) · upᵀ.
struct LowRank {
  Parameter* down = nullptr;  // A [rank, in]; null: no adapter
  Parameter* up = nullptr;    // B [out, rank]
  // A bias [out] of B's product, before the scale; null: none.
  Parameter* bias = nullptr;
  // The magnitudes m [out] of DoRA; null: none. The product is then
  // m * (x · Wᵀ + scale (x · downᵀ) · upᵀ) / |W + scale up · down|, with the norm of each row.
  Parameter* magnitude = nullptr;
  std::int64_t first = 0;  // for an adapter in `parts`: the first row of the matrix that has it
  float scale = 1;
  float dropout = 0;         // the dropout rate in training (engine/operators/low_rank.h)
  bool drops_after = false;  // dropout applies to B's output; false: to A's input
  bool possible = false;     // the operators that read the matrix apply its adapters
  // In place of one adapter of the complete matrix: adapters of single parts of a fused matrix, ascending and
  // disjoint. An embedding has at most one, whose A is stored as [vocabulary, rank].
  std::vector<LowRank> parts = {};

  explicit operator bool() const { return down != nullptr; }
};

// Whether weight decay applies to a vector. kOfHeadNorm: a QK-norm weight, for which ParameterStore::allocate
// sets kAlways if Layout::decay_head_norms is set.
enum class VectorDecay : std::uint8_t { kNever, kOfHeadNorm, kAlways };

struct Parameter {
  std::string name;  // "layers.3.attention.qkv"
  Shape shape;       // [out, in], [n], or [experts, out, in]: this rank's part
  Initializer initializer;
  Placement placement;
  ReduceGroup group = ReduceGroup::kData;
  std::vector<CheckpointPart> parts;
  bool trainable = true;
  bool decay = true;      // false: no weight decay, even if not a vector (biases of experts)
  float norm_offset = 0;  // number added to each norm weight before use
  VectorDecay vector_decay = VectorDecay::kNever;
  bool per_expert = false;  // the first axis counts experts; a token uses only a few experts
  // Operators read this parameter in fp32, even if they read other parameters in bf16. Routers need this. As
  // for other parameters, checkpoints hold the value in the compute type and the fp32 master.
  bool reads_full_precision = false;
  // Checkpoints also hold the parameter's value in fp32. Implies reads_full_precision.
  bool full_precision = false;
  // Checkpoints hold the values as int64. Needs full_precision, because fp32 represents integers up to 2^24
  // exactly.
  bool whole_numbers = false;
  // Index of the block whose linear layer or experts have this matrix. From this index, PrecisionRecipe
  // chooses the precision of the matrix's products. -1: not the matrix of a linear layer or of experts.
  std::int64_t linear_of = -1;
  LowRank low_rank = {};     // the matrix's adapter, used by linear() and similar operators
  bool is_low_rank = false;  // belongs to the adapter of another matrix: loaded weights may lack it
  bool vocabulary = false;   // the embedding or the head, which have one row per token of the vocabulary
  bool kernel = false;       // a convolution's weight: one row per channel, not used in matrix products
  // A format stores the frozen parameter in 4 bits. `value` then exists only while an operator reads it
  // (ExpandedWeight), and `offset`, the unit's elements and stored_range() count bytes of this storage.
  FourBitStorage four_bit = {};

  // ParameterStore::allocate sets this and all following members. Null if another stage has the parameter.
  ParameterUnit* unit = nullptr;
  std::int64_t offset = 0;  // position of element 0 within the unit
  int rule = 0;             // Layout::rule_of; also set if another stage has the parameter
  Tensor value;             // the value that operators read; absent while the unit is not gathered
                            // (DataParallel::use)
  Tensor gradient;          // has the unit's gradient_dtype; absent in inference, and while it has no memory

  int index = 0;  // position among all parameters
  // As in Megatron, norms and biases do not decay.
  bool decayed() const { return decay && (shape.rank() > 1 || vector_decay == VectorDecay::kAlways); }
  std::int64_t row_elements() const { return shape.rank() > 1 ? shape[shape.rank() - 1] : 1; }
  const Shape& whole_shape() const { return placement.is_whole() ? shape : placement.whole; }

  // The chunk of each use of the parameter, in forward order. This fixes the order in which gradients are
  // summed (see WeightGradientQueue).
  std::vector<int> uses;
  std::int64_t turn = 0;      // number of uses counted in this step up to now
  bool has_gradient = false;  // true: further contributions accumulate; false: the first contribution assigns
};

}  // namespace primus::engine
