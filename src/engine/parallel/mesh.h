// The mesh: how the ranks of a job share the work, with one axis and one communicator per kind of
// parallelism. Ranks are numbered as in Megatron-LM ("tp-cp-ep-dp-pp", Narayanan et al. 2021):
//
//   rank = tensor + T * (context + C * (data + D * stage))
//
// Experts are spread over the same ranks of a stage with a second numbering: rank within the stage = expert
// tensor + ET * (expert + E * copy). Between layers every rank of a stage holds its own tokens. So a
// parameter's gradient is summed over all ranks of the stage that hold the same part of the parameter
// (ReduceGroup).
//
// With hybrid sharding (Megatron's num_distributed_optimizer_instances), a reduce group has several shard
// groups. A shard group consists of consecutive ranks, which together hold one sharded copy. Ranks with the
// same index in their shard groups hold the same shard. A reduction first runs within each shard group.
//
// Each rank owns its mesh. Not thread-safe.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace primus::engine {

// Ranks on each axis. The number of data ranks follows from the size of the world.
struct MeshShape {
  int tensor = 1, context = 1, pipeline = 1;
  int expert = 1, expert_tensor = 1;  // number of a stage's ranks on each expert axis
  int copies = 1;  // number of copies of the sharded state: num_distributed_optimizer_instances
  // Number of consecutive ranks of the job that share a host, for all-to-all of experts in two hops; 0: the
  // all-to-all has one hop.
  int host = 0;

  // Returns whether each group of expert ranks consists of several complete hosts.
  bool experts_on_hosts() const {
    const int ranks = expert * expert_tensor;
    return host > 1 && ranks > host && ranks % host == 0;
  }
  int stage_ranks(int world) const { return world / pipeline; }
  int data(int world) const { return world / (tensor * context * pipeline); }
  bool operator==(const MeshShape&) const = default;
};

// A rank's coordinates on each axis.
struct MeshPlace {
  int tensor = 0, context = 0, data = 0, stage = 0;
  int expert = 0, expert_tensor = 0;
};
MeshPlace place_of(const MeshShape& shape, int world, int rank);

// The ranks over which a parameter's gradient is summed.
enum class ReduceGroup : std::uint8_t {
  kData,    // the parameter is split over tensor ranks; its gradient is summed over data and context ranks
  kTokens,  // each tensor rank has the complete parameter; its gradient is summed over all ranks of the stage
  // experts are split over expert-tensor ranks; the gradient is summed over ranks with the same part
  kExperts,
  // expert-tensor ranks have complete experts; the gradient is summed over ranks with these experts
  kExpertTokens,
};
inline constexpr std::size_t kReduceGroups = 4;
constexpr std::size_t index(ReduceGroup group) { return static_cast<std::size_t>(group); }

// The groups for all-to-all of experts in two hops (engine/parallel/expert_hops.h). Both are null if the
// all-to-all has one hop.
struct ExpertHosts {
  comm::Communicator* between = nullptr;  // the expert ranks with this rank's place on each host, by host
  comm::Communicator* within = nullptr;   // the expert ranks of this rank's host

  explicit operator bool() const { return between != nullptr; }
};

// A reduce group, from the view of one of its ranks.
struct Reduction {
  comm::Communicator* all = nullptr;  // null: a group of one rank
  // `shard`: the ranks that together hold one sharded copy. `replicas`: the ranks that hold the same shard
  // (null: only one copy exists).
  comm::Communicator* shard = nullptr;
  comm::Communicator* replicas = nullptr;

  int size() const { return all ? all->size() : 1; }
  int rank() const { return all ? all->rank() : 0; }
  int shards() const { return shard ? shard->size() : 1; }
};

class Mesh {
 public:
  // A mesh of one rank.
  Mesh();
  // `world`: all ranks, which build their meshes together. The product of the axes must divide the world's
  // size, and `copies` must divide the size of every reduce group (otherwise std::logic_error).
  Mesh(std::unique_ptr<comm::Communicator> world, const MeshShape& shape);

  // Returns a mesh with the same shape and place but without peers, which counts the bytes that would be
  // sent.
  Mesh measuring() const;

  int size() const { return world_ ? world_->size() : 1; }
  int rank() const { return world_ ? world_->rank() : 0; }
  const MeshShape& shape() const { return shape_; }
  const MeshPlace& place() const { return place_; }
  // Return the number of data ranks, which hold different sequences, and this rank's index among them.
  int data_ranks() const { return shape_.data(size()); }
  int data_rank() const { return place_.data; }

  // The following communicators are null if the group contains only this rank. The ranks of a group are in
  // world order.
  comm::Communicator* world() { return world_.get(); }
  const comm::Communicator* world() const { return world_.get(); }
  comm::Communicator* tensor() { return tensor_.get(); }
  comm::Communicator* context() { return context_.get(); }
  // The tensor and context ranks that together hold the tokens of one microbatch.
  comm::Communicator* sequence() { return shape_.context == 1 ? tensor_.get() : sequence_.get(); }
  // The ranks of the axes "expert tensor" and "expert", over which a layer's experts are spread.
  comm::Communicator* experts() { return experts_.get(); }
  ExpertHosts expert_hosts() const { return {expert_places_.get(), expert_host_.get()}; }
  // One rank of each stage, in stage order.
  comm::Communicator* pipeline() { return pipeline_.get(); }
  // The ranks of pipeline() on the first and the last stage; null on other stages.
  comm::Communicator* ends() { return ends_.get(); }

  // All communicators, the world's first.
  std::vector<comm::Communicator*> groups() const;
  // Sets the timeout of every communicator (comm::Communicator::set_timeout).
  void set_timeout(std::chrono::milliseconds timeout);

  const Reduction& reduction(ReduceGroup group) const { return reductions_[index(resolve(group))]; }
  // Reduce groups of the same ranks share one communicator. Returns the reduce group that owns the
  // communicator of `group`.
  ReduceGroup resolve(ReduceGroup group) const;

 private:
  std::unique_ptr<comm::Communicator> split(const std::vector<int>& members, const std::string& name,
                                            comm::Overlap overlap = comm::Overlap::kNothing);
  void make_reduction(ReduceGroup group, const std::vector<int>& members);

  MeshShape shape_;
  MeshPlace place_;
  std::unique_ptr<comm::Communicator> world_, tensor_, context_, sequence_, experts_, expert_places_,
      expert_host_, pipeline_, ends_;
  struct Owned {
    std::unique_ptr<comm::Communicator> all, shard, replicas;
  };
  std::array<Owned, kReduceGroups> owned_;
  std::array<Reduction, kReduceGroups> reductions_;
};

}  // namespace primus::engine
