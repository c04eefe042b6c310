// Parameters, their gradients and what the optimizer keeps about them, in flat buffers.
//
// A model declares its parameters in groups (the embedding, one block, the head). allocate() lays each group
// out as one or more units. A unit is a flat buffer of parameters that are stored alike: all trained or none,
// all read in one type. It is the grain of the optimizer, of sharding, of gathers and of reductions. Within a
// unit the decayed parameters come first.
//
// Of a unit a rank stores its shard: the elements [shard.begin, shard.end) of the master weights, of the
// optimizer's states and, depending on Sharding, of the gradient and of the values that operators read. On
// one rank the shard is the whole unit. What is not stored is gathered when operators need it, and reduced
// where it is owned (engine/data_parallel.h).
//
// The buffers live in the rank's persistent arena. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor/arena.h"
#include "tensor/tensor.h"
#include "turbo/context.h"

namespace primus::engine {

// How a parameter starts. Random values are drawn by (seed, the parameter's name, element), whatever the
// layout and whichever other parameters there are.
struct Initializer {
  enum class Kind : std::uint8_t { kNormal, kConstant } kind = Kind::kConstant;
  float value = 0;  // the standard deviation, or the constant
  static Initializer normal(double std) { return {Kind::kNormal, static_cast<float>(std)}; }
  static Initializer constant(double value) { return {Kind::kConstant, static_cast<float>(value)}; }
};

// Axes of a published tensor that lie in another order than the parameter's: the rows of a part, seen as
// [dims...], have their axes permuted (published axis i is dims[axes[i]]) and are then given `shape`. The
// first axis stays the first.
struct PublishedLayout {
  std::vector<std::int64_t> dims;
  std::vector<int> axes;
  std::vector<std::int64_t> shape;
};

// A tensor of the published checkpoint: rows [row, row + rows) of a parameter, which is [rows, last extent]
// when all extents before the last are taken together (a vector's rows are its elements). Fused projections
// hold several parts (q, k and v, say), experts some for each of them.
struct CheckpointPart {
  std::string name;
  std::int64_t row = 0, rows = 0;
  PublishedLayout layout = {};  // empty: the rows as they are
  // Further tensors that are equal to this one where a checkpoint has them; all are written.
  std::vector<std::string> copies = {};
};

struct ParameterUnit;

struct Parameter {
  std::string name;  // "layers.3.attention.qkv"
  Shape shape;       // [out, in], [n], or [experts, out, in]
  Initializer initializer;
  std::vector<CheckpointPart> parts;
  bool trainable = true;
  bool decay = true;        // false: no weight decay although it is no vector (the biases of experts)
  bool per_expert = false;  // the first axis is experts, of which a token meets a few
  // Operators read it in fp32, also where others are read in bf16 (routers). Checkpoints hold it in the
  // compute type and its master beside it, as they do for all others.
  bool reads_full_precision = false;
  // Checkpoints hold it in fp32, too. Implies reads_full_precision.
  bool full_precision = false;

  ParameterUnit* unit = nullptr;  // set by ParameterStore::allocate, as everything below
  std::int64_t offset = 0;        // of element 0 within the unit
  Tensor value;     // what operators read; absent while the unit is not gathered (DataParallel::use)
  Tensor gradient;  // fp32; absent when nothing is trained, and where it has no memory at present

  int index = 0;                                              // position among all parameters
  bool decayed() const { return decay && shape.rank() > 1; }  // Megatron: not on norms and biases
  std::int64_t row_elements() const { return shape.rank() > 1 ? shape[shape.rank() - 1] : 1; }

  // Which chunk of the model uses it, once per use, in forward order: fixes the order in which gradients are
  // summed (see WeightGradientQueue).
  std::vector<int> uses;
  std::int64_t turn = 0;      // uses accounted for so far in this step
  bool has_gradient = false;  // the first contribution assigns, later ones accumulate
};

// Elements [begin, end) of something flat.
struct FlatRange {
  std::int64_t begin = 0, end = 0;

  std::int64_t size() const { return end - begin; }
  bool empty() const { return begin >= end; }
  FlatRange intersect(const FlatRange& other) const {
    const FlatRange both{std::max(begin, other.begin), std::min(end, other.end)};
    return both.empty() ? FlatRange{begin, begin} : both;
  }
};

// What ranks of a data-parallel group store only their shard of: the ZeRO levels (Rajbhandari et al., 2020),
// and PyTorch's fully sharded data parallelism. Each level includes those before it.
enum class Sharding : std::uint8_t {
  kNone,        // everything is everywhere
  kStates,      // ZeRO-1: master weights and optimizer states
  kGradients,   // ZeRO-2: gradients
  kParameters,  // ZeRO-3: the values that operators read
};

// Something that an update rule keeps for every trained element: "exp_avg".
struct StateSpec {
  std::string name;
  DType dtype = DType::kF32;
  bool operator==(const StateSpec&) const = default;
};

struct ParameterUnit {
  std::string name;                    // "layers.3": of its group
  int number = 0;                      // position among all units
  std::vector<Parameter*> parameters;  // in the order of the buffers
  DType dtype = DType::kF32;           // of `values`
  bool trained = true;                 // false: only values are stored
  Sharding sharding = Sharding::kNone;
  std::int64_t elements = 0;          // in all, padding included
  std::int64_t decayed_elements = 0;  // the decayed run is [0, decayed_elements)
  FlatRange shard;                    // what this rank stores and updates
  FlatRange slice;  // its part of the shard that no other rank counts in a sum over all ranks

  // [elements], absent where there is no memory for it at present.
  Tensor values;    // what operators read
  Tensor gradient;  // fp32, this rank's own contributions
  // [shard], absent when not needed.
  Tensor stored_values;        // of `values`
  Tensor master;               // fp32; the same memory as stored_values in an fp32 unit
  Tensor reduced;              // fp32, the gradient of all ranks
  std::vector<Tensor> states;  // as ParameterStore::Layout::states

  // Makes `values` and the parameters' views of it.
  void set_values(const Tensor& whole);
  void set_gradient(const Tensor& whole);
};

// The elements of a parameter that this rank stores.
FlatRange stored_range(const Parameter& parameter);
// Those elements of one of the unit's buffers of a shard (master, reduced, ...): [stored_range] elements.
Tensor stored_part(const Tensor& of_shard, const Parameter& parameter);

class ParameterStore {
 public:
  // Parameters that were declared together.
  struct Group {
    std::string name;
    // What to do about weights that have no tensor of this group; empty: nothing but to say what is missing.
    std::string if_missing;
    std::vector<Parameter*> parameters;
  };

  // Declares a group; the following add() calls go into it. Returned addresses are stable.
  Group& begin_group(std::string name);
  // `parts` empty means: one part of the parameter's own name.
  Parameter& add(std::string name, Shape shape, Initializer initializer,
                 std::vector<CheckpointPart> parts = {});

  // Published tensors whose names begin so belong to the model, and this use of it does without.
  void leave_out(std::string prefix) { left_out_.push_back(std::move(prefix)); }
  bool left_out(std::string_view published_name) const;

  struct Layout {
    DType compute = DType::kF32;  // fp32 or bf16
    // False: inference. Values are all that is stored, in the compute type.
    bool train = true;
    std::vector<StateSpec> states = {};
    Sharding sharding = Sharding::kNone;
    int ranks = 1, rank = 0;  // of the data-parallel group
    int shards = 1;           // ranks that share one copy of what is sharded; divides `ranks`
    // Gradients of different microbatches are added up after the reduction over ranks, not before.
    bool reduce_each_microbatch = false;

    // True where a unit's whole gradient keeps its memory between steps.
    bool keeps_gradients() const { return !reduce_each_microbatch && sharding <= Sharding::kStates; }
  };
  // Lays every unit out and takes its buffers from `arena`. Call once, after the last add().
  void allocate(const Layout& layout, Arena& arena);

  // Enqueues the initial values of what this rank stores (master weights and stored values).
  void initialize(turbo::Context& context, std::uint64_t seed);
  // Enqueues the refresh of the stored values from the masters; nothing in fp32.
  void refresh_values(turbo::Context& context);

  std::deque<Group>& groups() { return groups_; }
  const std::deque<Group>& groups() const { return groups_; }
  // Empty before allocate().
  std::deque<ParameterUnit>& units() { return units_; }
  const std::deque<ParameterUnit>& units() const { return units_; }
  std::deque<Parameter>& parameters() { return parameters_; }
  const std::deque<Parameter>& parameters() const { return parameters_; }
  std::int64_t elements() const;  // of all parameters, padding not counted
  const Layout& layout() const { return layout_; }

 private:
  void add_unit(const std::string& name, const std::vector<Parameter*>& parameters);
  void allocate(ParameterUnit& unit, Arena& arena);

  std::deque<Group> groups_;
  std::deque<ParameterUnit> units_;
  std::deque<Parameter> parameters_;
  std::vector<std::string> left_out_;
  Layout layout_;
};

}  // namespace primus::engine
