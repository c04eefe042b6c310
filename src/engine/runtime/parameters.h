// Parameters, their gradients and their optimizer state, in flat buffers.
//
// A model declares its parameters in groups (the embedding, one block, the head). allocate() lays out each
// group as one or more units. A unit is a flat buffer of parameters that are stored in the same way: all
// trained or all frozen, all read in one type. The optimizer, sharding, gathers and reductions work on units.
// Within a unit and an update rule, the decayed parameters come first.
//
// A rank stores its shard of a unit: the elements [shard.begin, shard.end) of the master weights, of the
// optimizer state and, depending on Sharding, of the gradient and of the values that operators read. On one
// rank the shard is the entire unit. Other values are gathered when operators need them, and other gradients
// are reduced to their owner (engine/parallel/data_parallel.h).
//
// With tensor or expert parallelism, a rank's parameter is a part of the complete parameter (Placement). With
// pipelines, a rank has only the parameters of its stages. Names, initial values and checkpoints refer to the
// complete parameter.
//
// An optimizer may have several update rules (Muon for matrices, AdamW for the rest). Within a unit the
// parameters of one rule are contiguous, and the states of a rule have memory only for these parameters.
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

#include "engine/parallel/mesh.h"
#include "engine/runtime/parameter.h"
#include "tensor/arena.h"
#include "tensor/strided_run.h"
#include "tensor/tensor.h"
#include "turbo/block_moments.h"
#include "turbo/context.h"

namespace primus::engine {

// Elements [begin, end) of a flat buffer.
struct FlatRange {
  std::int64_t begin = 0, end = 0;

  std::int64_t size() const { return end - begin; }
  bool empty() const { return begin >= end; }
  FlatRange intersect(const FlatRange& other) const {
    const FlatRange both{std::max(begin, other.begin), std::min(end, other.end)};
    return both.empty() ? FlatRange{begin, begin} : both;
  }
};

// Selects the data that the ranks of a data-parallel group shard: the ZeRO levels (Rajbhandari et al., 2020),
// as in PyTorch's fully sharded data parallelism. Each level includes the previous levels.
enum class Sharding : std::uint8_t {
  kNone,        // every rank stores all data
  kStates,      // ZeRO-1: master weights and optimizer states
  kGradients,   // ZeRO-2: gradients
  kParameters,  // ZeRO-3: the values that operators read
};

// A quantity that an update rule keeps per trained element, such as "exp_avg".
struct StateSpec {
  std::string name;
  // The 8-bit types of turbo/block_moments.h have one scale per block of neighbouring elements of a
  // parameter. A block never crosses the boundary of a parameter or of a rank's shard.
  DType dtype = DType::kF32;

  bool has_scales() const { return turbo::has_block_scales(dtype); }
  // Returns the type in checkpoints. This type represents each value exactly, so any mesh can load the state,
  // with any division into blocks.
  DType saved_dtype() const { return has_scales() ? DType::kBF16 : dtype; }
  bool operator==(const StateSpec&) const = default;
};

// A rank's place in a reduce group.
struct GroupPlace {
  ReduceGroup group = ReduceGroup::kData;  // owns the communicator of these ranks (Mesh::resolve)
  int ranks = 1, rank = 0;
  int shards = 1;  // ranks that share one sharded copy; divides `ranks`
};
// Indexed by ReduceGroup.
using GroupPlaces = std::array<GroupPlace, kReduceGroups>;
GroupPlaces group_places(const Mesh& mesh);

// Neighbouring elements of a unit with the same update rule and decay.
struct ParameterRun {
  FlatRange elements;
  int rule = 0;  // Layout::rule_of
  bool decayed = true;
};

// One state of a unit, for the elements of the shard that belong to its update rule.
struct UnitState {
  StateSpec spec;
  int rule = 0;
  FlatRange elements;  // range within the unit
  Tensor values;       // [elements]
  Tensor scales;       // [elements / turbo::kMomentBlock] bf16, if the spec has scales
};

// The weights of a unit that a rank stores, [shard] each; a tensor that is not needed is absent.
struct StoredWeights {
  Tensor values;     // this shard of ParameterUnit::values
  Tensor master;     // fp32; the same memory as `values` in an fp32 unit; absent if masters are split
  Tensor remainder;  // int16: the low bits of split masters (turbo/master_weights.h)
};

struct ParameterUnit {
  std::string name;                    // name of its group, such as "layers.3"
  int number = 0;                      // position among all units
  int declared = 0;                    // index of the group that declared its parameters
  std::vector<Parameter*> parameters;  // parameters in buffer order
  DType dtype = DType::kF32;           // type of `values`; kU8: parameters in 4 bits (FourBitStorage)
  DType gradient_dtype = DType::kF32;  // type of `gradient` and `reduced`
  bool trained = true;                 // false: only values are stored
  bool at_both_ends = false;           // Group::at_both_ends
  ReduceGroup group = ReduceGroup::kData;
  int ranks = 1;  // number of ranks in `group`
  Sharding sharding = Sharding::kNone;
  std::int64_t elements = 0;       // total, including padding
  std::vector<ParameterRun> runs;  // in order, including padding between parameters
  FlatRange shard;                 // the elements that this rank stores and updates
  FlatRange slice;                 // this rank's part of the shard in sums over all ranks

  // The next tensors have the shape [elements]; a tensor without memory is absent.
  Tensor values;    // values that operators read
  Tensor gradient;  // the sum of this rank's contributions to the gradient
  StoredWeights stored;
  Tensor reduced;  // [shard], the gradient of all ranks; absent when not needed

  std::vector<UnitState> states;  // states of the rules that have elements here, in rule order

  bool split() const { return !stored.remainder.absent(); }
  // Sets `values` and the parameters' views of it.
  void set_values(const Tensor& whole);
  void set_gradient(const Tensor& whole);
};

// Returns the elements of a rank's parameter in the rows [row, row + rows) of the complete parameter. They
// are contiguous.
FlatRange elements_in_rows(const Parameter& parameter, std::int64_t row, std::int64_t rows);
// Returns the positions of a rank's elements in the complete parameter, in the same order.
std::vector<StridedRun> whole_elements(const Parameter& parameter, const FlatRange& elements);

// Returns the elements of a parameter that this rank stores. For a parameter in 4 bits: the bytes.
FlatRange stored_range(const Parameter& parameter);
// Returns the parameter's elements in a shard buffer of its unit (master, reduced, ...), in the shape
// [stored_range elements].
Tensor stored_part(const Tensor& of_shard, const Parameter& parameter);

class ParameterStore {
 public:
  // `mesh`: the ranks over which parameters are spread, for code that declares parameters; null: one rank.
  explicit ParameterStore(Mesh* mesh = nullptr) : mesh_(mesh) {}
  Mesh* mesh() const { return mesh_; }

  // A group of parameters that are declared together.
  struct Group {
    std::string name;
    // Advice for the error message if loaded weights lack this group's tensors. Empty: the message only names
    // the missing tensors.
    std::string if_missing;
    std::vector<Parameter*> parameters;
    bool here = true;    // false: another stage has the parameters; this rank has only their shapes
    bool counts = true;  // false: these parameters are copies, which another stage counts and saves
    // The first and the last stage both have the group. Its gradient is the sum over both stages.
    bool at_both_ends = false;
  };

  // Declares a group; the following add() calls go into it. Returned addresses are stable.
  Group& begin_group(std::string name);
  // `shape`: the shape of this rank's part. `placement`: which part of the complete parameter this is. Empty
  // `parts`: one tensor with the parameter's name.
  Parameter& add(std::string name, Shape shape, Initializer initializer,
                 std::vector<CheckpointPart> parts = {}, Placement placement = {});

  // Ignores published tensors whose names have this prefix: this run does not use these tensors of the model.
  void leave_out(std::string prefix) { left_out_.push_back(std::move(prefix)); }
  bool left_out(std::string_view published_name) const;

  struct Layout {
    DType compute = DType::kF32;  // fp32 or bf16
    // Gradient type of parameters that are read in bf16: fp32 or bf16. Gradients of all other parameters are
    // fp32.
    DType gradients = DType::kF32;
    // False: inference. Only values in the compute type are stored.
    bool train = true;
    // The states of each update rule. `rule_of` returns a parameter's rule, an index into `states`; empty:
    // all parameters have the first rule.
    std::vector<std::vector<StateSpec>> states = {};
    std::function<int(const Parameter&)> rule_of = {};
    Sharding sharding = Sharding::kNone;
    GroupPlaces groups = {};
    // Master weights of bf16 units are stored as two halves: the bf16 values that operators read, and the 16
    // low bits.
    bool split_masters = false;
    // Sums gradients over microbatches after the reduction over ranks, not before.
    bool reduce_each_microbatch = false;
    // True: weight decay also applies to QK-norm weights.
    bool decay_head_norms = false;

    // True if a unit's complete gradient, summed over several ranks, keeps its memory between steps.
    bool keeps_gradients() const { return !reduce_each_microbatch && sharding <= Sharding::kStates; }
  };
  // Lays out every unit and allocates its buffers from `arena`. Call once, after the last add().
  void allocate(const Layout& layout, Arena& arena);

  // Enqueues the initial values of this rank's part (master weights and stored values).
  void initialize(turbo::Context& context, std::uint64_t seed);
  // Initializes only the LoRA matrices.
  void initialize_new(turbo::Context& context, std::uint64_t seed);
  // Enqueues the update of the stored values from the masters; does nothing if both share memory.
  void refresh_values(turbo::Context& context);

  std::deque<Group>& groups() { return groups_; }
  const std::deque<Group>& groups() const { return groups_; }
  // All units, in buffer order. Empty before allocate().
  std::deque<ParameterUnit>& units() { return units_; }
  const std::deque<ParameterUnit>& units() const { return units_; }
  std::deque<Parameter>& parameters() { return parameters_; }
  const std::deque<Parameter>& parameters() const { return parameters_; }
  std::int64_t elements() const;          // all parameters of the model, on all ranks; without padding
  std::int64_t trained_elements() const;  // elements that an optimizer updates
  std::int64_t counted_elements() const;  // elements within this rank's ParameterUnit::slice
  // Bytes that a checkpoint needs for the optimizer state of all parameters of the model.
  std::int64_t state_bytes() const;
  const Layout& layout() const { return layout_; }

 private:
  void add_unit(std::size_t group, const std::vector<Parameter*>& parameters);
  void allocate(ParameterUnit& unit, Arena& arena);
  void initialize(Parameter& parameter, turbo::Context& context, std::uint64_t seed);

  Mesh* mesh_;
  std::deque<Group> groups_;
  std::deque<ParameterUnit> units_;
  std::deque<Parameter> parameters_;
  std::vector<std::string> left_out_;
  Layout layout_;
  std::int64_t grain_ = 0;  // alignment in elements of parameters and shards within a unit
};

}  // namespace primus::engine
