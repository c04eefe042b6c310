// Data parallelism: gathers a unit's values before operators read these values, and reduces the unit's
// gradients to the ranks that own the gradients (engine/runtime/parameters.h, Sharding). Gathers and
// reductions use the unit's reduce group (engine/parallel/mesh.h). The tape calls DataParallel around every
// operator with a parameter. On one rank, these calls do nothing.
//
// Values. Under Sharding::kParameters a unit is gathered into the stash before its first operator. The unit
// is released when operators with parameters of another declared group run. If reshard_after_forward is off,
// units gathered in a forward pass are released only in the backward pass. Every pass visits the units in the
// same order. So the order is recorded, and the next unit is prefetched while the current unit computes. At
// lower levels values are gathered once after each update.
//
// Gradients. A unit's gradient is reduced as soon as it has all contributions of the step (with
// Layout::reduce_each_microbatch: of the microbatch). The reduction overlaps the rest of the backward pass.
//
// All levels of Sharding give the same bits, because the order of sums is the same. A gradient is summed over
// microbatches on each rank and then over ranks. With reduce_each_microbatch, a gradient is first summed over
// ranks. Hybrid sharding first sums within the groups of ranks that hold one sharded copy. On the CPU in
// fp32, hybrid sharding gives the same bits if these groups have 2^k ranks (comm/communicator.h).
//
// Collectives run on the rank's communication stream, in the same order on all ranks. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/runtime/parameters.h"
#include "engine/runtime/rank.h"

namespace primus::engine {

struct DataParallelSettings {
  bool overlap_reduction = true;  // false: gradients are reduced at the end of the step
  // False: units are not prefetched, and the compute stream waits until updated values are distributed.
  bool overlap_gather = true;
  bool reshard_after_forward = true;
  // The type in which fp32 gradients are reduced. bf16 halves the traffic, but rounds once before and once
  // after the sum. Gradients stored in bf16 are always sent in bf16.
  DType reduce_dtype = DType::kF32;
};

class DataParallel {
 public:
  // kWeight: weight gradients separate from their backward pass. kReading: inference of a few tokens with a
  // KV cache. kBase: an evaluation without adapters.
  enum class Pass : std::uint8_t { kForward, kBackward, kWeight, kEvaluation, kReading, kBase };

  // The store must be allocated for the rank's mesh. `rank` and `store` must outlive this object.
  DataParallel(Rank& rank, ParameterStore& store, const DataParallelSettings& settings);

  // Starts a step of this many microbatches: the next contribution to each gradient assigns it. Also drops
  // the remains of an abandoned step (one rank only).
  void begin_step(std::int64_t microbatches);
  // Starts a pass of one chunk of the model. The operators called from now on belong to this pass.
  void begin_pass(Pass pass, int chunk);
  // Makes the parameter readable for kernels enqueued from now on; readable until the next use() of another
  // unit.
  void use(const Parameter& parameter);
  // Provides memory for the parameter's gradient, which the next kernels write.
  void before_gradient(const Parameter& parameter);
  // Counts one contribution to the parameter's gradient, or a use that contributes no gradient
  // (Parameter::turn).
  void contributed(const Parameter& parameter);
  // Ends a microbatch of training or evaluation, or an inference pass: releases the stash memory, except
  // gradients that further microbatches add to. Every microbatch therefore has the same memory layout, and
  // measuring a single microbatch is enough.
  void end_microbatch();
  // Ends a step's backward passes: ParameterUnit::reduced is complete for kernels enqueued from now on.
  // Gradients without a contribution are zero.
  void finish_gradients();
  // Distributes the stored values, which the compute stream has changed, to all ranks.
  void distribute_values();

  // Gathers `of_shard` [shard] of all ranks that share a copy of the unit into `whole` [elements], for
  // kernels enqueued from now on. Both tensors have the same type. The unit must be sharded.
  void gather_shards(const ParameterUnit& unit, const Tensor& of_shard, const Tensor& whole);

  // Lets kernels enqueued from now on read all values, without use(). Not allowed under
  // Sharding::kParameters.
  void wait_for_all_values();

  // Sums the tensor in place over all ranks of the mesh, for kernels enqueued from now on.
  void sum(const Tensor& tensor);
  // Sums in place over the data ranks of this stage, which hold different sequences. The tensor must be equal
  // on all ranks that hold the same sequences.
  void sum_over_data(const Tensor& tensor);
  // Replaces the tensor by its maximum over all ranks, in place.
  void largest(const Tensor& tensor);

 private:
  // The transfers in flight for a unit.
  struct Traffic {
    std::unique_ptr<Event> gathered, reduced;
    bool gathering = false;  // the compute stream has not waited for `gathered` yet
    bool reducing = false;   // the compute stream has not waited for `reduced` yet
    bool has_sum = false;    // ParameterUnit::reduced holds this step's sum once `reduced` is done
    bool adds = false;       // the reduction in flight is added to this step's sum
    int complete = 0;        // number of parameters that have all their contributions
    // Stash memory. values: gathered values. gradient: this rank's gradient. narrow: that gradient in the
    // type of the reduction. part: the reduced result.
    Buffer values, gradient, narrow, part;
  };
  // The units that one pass uses, in the order of use. A unit appears once per use.
  struct Program {
    std::vector<int> units;
    std::size_t position = 0;
  };

  const Reduction& reduction_of(const ParameterUnit& unit) const { return mesh_.reduction(unit.group); }
  Traffic& traffic_of(const ParameterUnit& unit) { return traffic_[static_cast<std::size_t>(unit.number)]; }
  // Makes the communication stream wait for the work enqueued on the compute stream up to now.
  void follow_compute();
  void gather(ParameterUnit& unit);
  void wait_for_values(ParameterUnit& unit);
  void release(ParameterUnit& unit);
  void release_all();
  // Sets gradients without a contribution to zero.
  void complete_gradient(ParameterUnit& unit);
  // Returns the type in which the unit's gradient is sent.
  DType sent_dtype(const ParameterUnit& unit) const;
  void reduce(ParameterUnit& unit);
  void join_oldest_reduction();
  void all_reduce(comm::Communicator& group, const Tensor& tensor, comm::Reduction reduction);

  Rank& rank_;
  ParameterStore& store_;
  DataParallelSettings settings_;
  Mesh& mesh_;
  std::vector<Traffic> traffic_;
  std::unique_ptr<Event> computed_, communicated_;
  std::map<std::pair<Pass, int>, Program> programs_;
  Program* program_ = nullptr;
  Pass pass_ = Pass::kForward;
  // Gathered units. used_: the units of one declared group, which operators read now. prefetched_: the unit
  // that is used next. kept_: units held for the backward pass.
  std::vector<ParameterUnit*> used_;
  ParameterUnit* prefetched_ = nullptr;
  std::vector<ParameterUnit*> kept_;
  std::deque<ParameterUnit*> reducing_;  // units whose gradients are being reduced, oldest first
  std::int64_t microbatches_ = 1;
};

}  // namespace primus::engine
