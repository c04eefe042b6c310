// Data parallelism: brings a unit's values to where operators read them, and its gradients to where they are
// owned (engine/parameters.h, Sharding), over the ranks of the unit's reduce group (engine/mesh.h). The tape
// calls it around every operator with a parameter; on one rank all of it is free.
//
// Values. Under Sharding::kParameters a unit is gathered into the stash before its first operator, and given
// back when operators of another declared group run (or, in forward passes with reshard_after_forward off, in
// the backward pass). The order of units is the same in every pass, so it is recorded, and the next unit is
// gathered while the present one computes. Below that level values are gathered once after each update.
//
// Gradients. Once every parameter of a unit has had all its contributions (of the step, or of the microbatch
// with Layout::reduce_each_microbatch), the unit is reduced, beside the rest of the backward pass.
//
// All levels give the same bits for the same order of sums: a gradient is summed over microbatches on each
// rank and then over ranks, or the other way round with reduce_each_microbatch. Hybrid sharding sums within
// the groups of shards first: equal bits if these have 2^k ranks, on the CPU in fp32 (comm/communicator.h).
//
// Collectives run on the rank's communication stream, in the same order on all ranks. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/parameters.h"
#include "engine/rank.h"

namespace primus::engine {

struct DataParallelSettings {
  bool overlap_reduction = true;  // false: gradients are reduced at the end of the step
  // False: nothing is gathered before it is needed, and training waits for updated values.
  bool overlap_gather = true;
  bool reshard_after_forward = true;
  // Of fp32 gradients; or bf16: half the traffic, rounded once before and once after the sum. Gradients that
  // are kept in bf16 are sent as they are.
  DType reduce_dtype = DType::kF32;
};

class DataParallel {
 public:
  // kWeight: weight gradients apart from their backward pass. kReading: a few tokens, with a cache. kBase: an
  // evaluation without adapters.
  enum class Pass : std::uint8_t { kForward, kBackward, kWeight, kEvaluation, kReading, kBase };

  // The store must be allocated for the rank's mesh; all must outlive this.
  DataParallel(Rank& rank, ParameterStore& store, const DataParallelSettings& settings);

  // Starts a step of so many microbatches: the next contribution to each gradient assigns it. What an
  // abandoned step left behind is dropped (one rank only).
  void begin_step(std::int64_t microbatches);
  // What follows are the operators of this pass of a chunk of the model.
  void begin_pass(Pass pass, int chunk);
  // Kernels that are enqueued from now on read the parameter; valid until the next use() of another unit.
  void use(const Parameter& parameter);
  // Kernels that are enqueued next write the parameter's gradient.
  void before_gradient(const Parameter& parameter);
  // One of the parameter's uses has had its turn (Parameter::turn).
  void contributed(const Parameter& parameter);
  // Ends a microbatch, in training or evaluation, or a pass that reads: gives back what the stash lent, but
  // for gradients that further microbatches contribute to. So memory lies the same way in all microbatches,
  // and measuring one is enough.
  void end_microbatch();
  // Ends a step's backward passes: ParameterUnit::reduced is complete for kernels enqueued from now on.
  // Gradients that received nothing are zero.
  void finish_gradients();
  // The stored values have been changed on the compute stream: brings them to all ranks.
  void distribute_values();

  // whole [elements] = what the ranks that share a copy of the unit have for its elements, of_shard [shard]
  // on this rank, for kernels enqueued from now on. Equal types. For sharded units.
  void gather_shards(const ParameterUnit& unit, const Tensor& of_shard, const Tensor& whole);

  // Kernels that are enqueued from now on may read all values, without use(). Not under
  // Sharding::kParameters.
  void wait_for_all_values();

  // out = the sum over all ranks of the mesh, for kernels enqueued from now on. In place.
  void sum(const Tensor& tensor);
  // The same over the ranks of this stage that hold other sequences, of what all ranks of a sequence have
  // alike: those with another data rank.
  void sum_over_data(const Tensor& tensor);
  // The largest over all ranks, likewise.
  void largest(const Tensor& tensor);

 private:
  // What is on its way for a unit.
  struct Traffic {
    std::unique_ptr<Event> gathered, reduced;
    bool gathering = false;  // the compute stream has not waited for `gathered` yet
    bool reducing = false;   // nor for `reduced`
    bool has_sum = false;    // ParameterUnit::reduced holds something of this step, or will when reduced
    bool adds = false;       // the reduction on its way is to be added to that
    int complete = 0;        // parameters whose contributions have all come
    // Memory from the stash: values, this rank's gradient, the same in the type of the reduction, its result.
    Buffer values, gradient, narrow, part;
  };
  // The units that one pass uses, in order, each as often as it comes.
  struct Program {
    std::vector<int> units;
    std::size_t position = 0;
  };

  const Reduction& reduction_of(const ParameterUnit& unit) const { return mesh_.reduction(unit.group); }
  Traffic& traffic_of(const ParameterUnit& unit) { return traffic_[static_cast<std::size_t>(unit.number)]; }
  // Lets the communication stream wait for what is enqueued on the compute stream so far.
  void follow_compute();
  void gather(ParameterUnit& unit);
  void wait_for_values(ParameterUnit& unit);
  void give_back(ParameterUnit& unit);
  void give_all_back();
  // Gradients without a contribution become zero.
  void complete_gradient(ParameterUnit& unit);
  // The type in which the unit's gradient is sent.
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
  // Gathered units: those in use, which were declared together, the next one, and those that wait for the
  // backward pass.
  std::vector<ParameterUnit*> used_;
  ParameterUnit* prefetched_ = nullptr;
  std::vector<ParameterUnit*> kept_;
  std::deque<ParameterUnit*> reducing_;  // oldest first
  std::int64_t microbatches_ = 1;
};

}  // namespace primus::engine
