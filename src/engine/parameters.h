// Parameters, their gradients and what the optimizer keeps about them, in flat buffers.
//
// A model declares its parameters in groups (the embedding, one block, the head). allocate() lays each group
// out as one or more units. A unit is a flat buffer of parameters that are stored alike: all trained or none,
// all read in one type. It is the grain of the optimizer, of sharding, of gathers and of reductions. Within a
// unit, and a rule, the decayed parameters come first.
//
// Of a unit a rank stores its shard: the elements [shard.begin, shard.end) of the master weights, of the
// optimizer's states and, depending on Sharding, of the gradient and of the values that operators read. On
// one rank the shard is the whole unit. What is not stored is gathered when operators need it, and reduced
// where it is owned (engine/data_parallel.h).
//
// With tensor or expert parallelism a rank's parameter is a part of a whole one (Placement), and with
// pipelines it has the parameters of its stages only. Names, initial values and checkpoints are those of the
// whole.
//
// An optimizer may have several update rules (Muon for matrices, AdamW for the rest). Within a unit the
// parameters of one rule lie together, and a state has memory for the elements of its rule alone.
//
// The buffers live in the rank's persistent arena. Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/mesh.h"
#include "engine/parameter.h"
#include "tensor/arena.h"
#include "tensor/strided_run.h"
#include "tensor/tensor.h"
#include "turbo/block_moments.h"
#include "turbo/context.h"

namespace primus::engine {

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
  // The 8-bit types of turbo/block_moments.h have a scale for each block of a parameter's neighbouring
  // elements. A block never has elements of two parameters, nor of two ranks' shards.
  DType dtype = DType::kF32;

  bool has_scales() const { return turbo::has_block_scales(dtype); }
  // The type in which checkpoints hold it, each number as it is: any mesh can load it, whatever its blocks.
  DType saved_dtype() const { return has_scales() ? DType::kBF16 : dtype; }
  bool operator==(const StateSpec&) const = default;
};

// A rank's place in a reduce group.
struct GroupPlace {
  ReduceGroup group = ReduceGroup::kData;  // which groups of the same ranks share (Mesh::resolve)
  int ranks = 1, rank = 0;
  int shards = 1;  // ranks that share one copy of what is sharded; divides `ranks`
};
// By ReduceGroup.
using GroupPlaces = std::array<GroupPlace, kReduceGroups>;
GroupPlaces group_places(const Mesh& mesh);

// Neighbouring elements of a unit that are updated alike.
struct ParameterRun {
  FlatRange elements;
  int rule = 0;  // Layout::rule_of
  bool decayed = true;
};

// A state of a unit, for the elements of the shard that its rule updates.
struct UnitState {
  StateSpec spec;
  int rule = 0;
  FlatRange elements;  // of the unit
  Tensor values;       // [elements]
  Tensor scales;       // [elements / turbo::kMomentBlock] bf16, where the spec has them
};

struct ParameterUnit {
  std::string name;                    // "layers.3": of its group
  int number = 0;                      // position among all units
  int declared = 0;                    // position of the group that its parameters were declared in
  std::vector<Parameter*> parameters;  // in the order of the buffers
  DType dtype = DType::kF32;           // of `values`
  DType gradient_dtype = DType::kF32;  // of `gradient` and `reduced`
  bool trained = true;                 // false: only values are stored
  bool at_both_ends = false;           // as Group's
  ReduceGroup group = ReduceGroup::kData;
  int ranks = 1;  // of that group
  Sharding sharding = Sharding::kNone;
  std::int64_t elements = 0;       // in all, padding included
  std::vector<ParameterRun> runs;  // one after the other, padding between parameters included
  FlatRange shard;                 // what this rank stores and updates
  FlatRange slice;                 // its part of the shard that no other rank counts in a sum over all ranks

  // [elements], absent where there is no memory for it at present.
  Tensor values;    // what operators read
  Tensor gradient;  // this rank's own contributions
  // [shard], absent when not needed.
  Tensor stored_values;  // of `values`
  Tensor master;         // fp32; the same memory as stored_values in an fp32 unit; absent where it is split
  Tensor remainder;  // int16: with stored_values the masters (turbo/master_weights.h), where they are split
  Tensor reduced;    // the gradient of all ranks

  std::vector<UnitState> states;  // of the rules that have elements here, in the order of the rules

  bool split() const { return !remainder.absent(); }
  // Makes `values` and the parameters' views of it.
  void set_values(const Tensor& whole);
  void set_gradient(const Tensor& whole);
};

// Elements of a rank's parameter that are in the rows [row, row + rows) of the whole one: consecutive ones.
FlatRange elements_in_rows(const Parameter& parameter, std::int64_t row, std::int64_t rows);
// Where elements of a rank's parameter are in the whole one, in the same order.
std::vector<StridedRun> whole_elements(const Parameter& parameter, const FlatRange& elements);

// The elements of a parameter that this rank stores.
FlatRange stored_range(const Parameter& parameter);
// Those elements of one of the unit's buffers of a shard (master, reduced, ...): [stored_range] elements.
Tensor stored_part(const Tensor& of_shard, const Parameter& parameter);

class ParameterStore {
 public:
  // `mesh`: the ranks among which parameters are spread, for those who declare them; null: there is one rank.
  explicit ParameterStore(Mesh* mesh = nullptr) : mesh_(mesh) {}
  Mesh* mesh() const { return mesh_; }

  // Parameters that were declared together.
  struct Group {
    std::string name;
    // What to do about weights that have no tensor of this group; empty: nothing but to say what is missing.
    std::string if_missing;
    std::vector<Parameter*> parameters;
    bool here = true;    // false: another stage has them, and this rank knows their names and shapes
    bool counts = true;  // false: a copy of what another stage has, which counts and saves it
    // The first and the last stage have it; the gradient is the sum of both.
    bool at_both_ends = false;
  };

  // Declares a group; the following add() calls go into it. Returned addresses are stable.
  Group& begin_group(std::string name);
  // `shape`: of this rank's part, and `placement` says which. No `parts`: one of the parameter's own name.
  Parameter& add(std::string name, Shape shape, Initializer initializer,
                 std::vector<CheckpointPart> parts = {}, Placement placement = {});

  // Published tensors whose names begin so belong to the model, and this use of it does without.
  void leave_out(std::string prefix) { left_out_.push_back(std::move(prefix)); }
  bool left_out(std::string_view published_name) const;

  struct Layout {
    DType compute = DType::kF32;  // fp32 or bf16
    // Of parameters that are read in bf16: fp32 or bf16. The others' are fp32.
    DType gradients = DType::kF32;
    // False: inference. Values are all that is stored, in the compute type.
    bool train = true;
    // What each of the optimizer's update rules keeps, and which of them a parameter has: an index into
    // `states`. Empty `rule_of`: all have the first.
    std::vector<std::vector<StateSpec>> states = {};
    std::function<int(const Parameter&)> rule_of = {};
    Sharding sharding = Sharding::kNone;
    GroupPlaces groups = {};
    // Master weights of bf16 units are split: the values that operators read, and 16 bits beside them.
    bool split_masters = false;
    // Gradients of different microbatches are added up after the reduction over ranks, not before.
    bool reduce_each_microbatch = false;
    // Weights of norms of heads decay as matrices do.
    bool decay_head_norms = false;

    // True where the whole gradient of a unit of several ranks keeps its memory between steps.
    bool keeps_gradients() const { return !reduce_each_microbatch && sharding <= Sharding::kStates; }
  };
  // Lays every unit out and takes its buffers from `arena`. Call once, after the last add().
  void allocate(const Layout& layout, Arena& arena);

  // Enqueues the initial values of what this rank stores (master weights and stored values).
  void initialize(turbo::Context& context, std::uint64_t seed);
  // Of the matrices of low rank alone.
  void initialize_low_rank(turbo::Context& context, std::uint64_t seed);
  // Enqueues the refresh of the stored values from the masters; nothing where both are the same memory.
  void refresh_values(turbo::Context& context);

  std::deque<Group>& groups() { return groups_; }
  const std::deque<Group>& groups() const { return groups_; }
  // Empty before allocate().
  std::deque<ParameterUnit>& units() { return units_; }
  const std::deque<ParameterUnit>& units() const { return units_; }
  std::deque<Parameter>& parameters() { return parameters_; }
  const std::deque<Parameter>& parameters() const { return parameters_; }
  std::int64_t elements() const;  // of all parameters of the model, wherever they are; padding not counted
  std::int64_t trained_elements() const;  // of all, the ones that an optimizer updates
  std::int64_t counted_elements() const;  // of all, the ones in the units' slices
  // Bytes of the optimizer's states of all parameters of the model in a checkpoint.
  std::int64_t state_bytes() const;
  const Layout& layout() const { return layout_; }

 private:
  void add_unit(std::size_t group, const std::vector<Parameter*>& parameters);
  void allocate(ParameterUnit& unit, Arena& arena);
  void initialize(const Parameter& parameter, turbo::Context& context, std::uint64_t seed);

  Mesh* mesh_;
  std::deque<Group> groups_;
  std::deque<ParameterUnit> units_;
  std::deque<Parameter> parameters_;
  std::vector<std::string> left_out_;
  Layout layout_;
  std::int64_t grain_ = 0;  // parameters and shards begin at multiples of so many elements of a unit
};

}  // namespace primus::engine
