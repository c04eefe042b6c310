// The mesh: how the ranks of a job share the work, one axis for each way of sharing, and a communicator for
// each axis. Ranks are numbered as in Megatron-LM ("tp-cp-ep-dp-pp", Narayanan et al. 2021):
//
//   rank = tensor + T * (context + C * (data + D * stage))
//
// Experts are spread over the same ranks of a stage in another way: rank within the stage = expert tensor +
// ET * (expert + E * copy). Between layers every rank of a stage holds tokens of its own; so whatever a
// parameter is split over, its gradient is a sum over the other ranks of the stage (ReduceGroup).
//
// Groups of ranks that share one copy of what is sharded may be smaller than a reduce group (hybrid sharding,
// Megatron's num_distributed_optimizer_instances): consecutive ranks hold one copy between them, and ranks
// with the same place in their groups of shards hold the same. Reductions go over the shards first.
//
// A mesh belongs to its rank. Not thread-safe.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace primus::engine {

// How many ranks each axis has; the rest is data parallelism.
struct MeshShape {
  int tensor = 1, context = 1, pipeline = 1;
  int expert = 1, expert_tensor = 1;  // of the ranks of a stage
  int copies = 1;                     // of what is sharded: num_distributed_optimizer_instances

  int stage_ranks(int world) const { return world / pipeline; }
  int data(int world) const { return world / (tensor * context * pipeline); }
  bool operator==(const MeshShape&) const = default;
};

// A rank's place on each axis.
struct MeshPlace {
  int tensor = 0, context = 0, data = 0, stage = 0;
  int expert = 0, expert_tensor = 0;
};
MeshPlace place_of(const MeshShape& shape, int world, int rank);

// The ranks over which a parameter's gradient is a sum.
enum class ReduceGroup : std::uint8_t {
  kData,     // split over tensor ranks: data and context ranks
  kTokens,   // whole on all tensor ranks, each of which sees other tokens or heads: all ranks of the stage
  kExperts,  // of experts: the ranks that hold the same ones, and the same part of their width
  kExpertTokens,  // of experts, whole on all of their tensor ranks: the ranks that hold the same ones
};
inline constexpr std::size_t kReduceGroups = 4;
constexpr std::size_t index(ReduceGroup group) { return static_cast<std::size_t>(group); }

// A reduce group, as one of its ranks sees it.
struct Reduction {
  comm::Communicator* all = nullptr;  // null: the rank is alone
  // The ranks that hold one copy of what is sharded, and those that hold the same shard (null: one copy).
  comm::Communicator* shard = nullptr;
  comm::Communicator* replicas = nullptr;

  int size() const { return all ? all->size() : 1; }
  int rank() const { return all ? all->rank() : 0; }
  int shards() const { return shard ? shard->size() : 1; }
};

class Mesh {
 public:
  // One rank, alone.
  Mesh();
  // `world`: all ranks, which build their meshes together. The axes must divide it, and `copies` every reduce
  // group (std::logic_error).
  Mesh(std::unique_ptr<comm::Communicator> world, const MeshShape& shape);

  // The same place in the same shape, without peers: it counts what would be sent.
  Mesh measuring() const;

  int size() const { return world_ ? world_->size() : 1; }
  int rank() const { return world_ ? world_->rank() : 0; }
  const MeshShape& shape() const { return shape_; }
  const MeshPlace& place() const { return place_; }
  // Ranks with other sequences, and this rank's number among them.
  int data_ranks() const { return shape_.data(size()); }
  int data_rank() const { return place_.data; }

  // Null where the group is this rank alone. Ranks of a group are in the order of the world's.
  comm::Communicator* world() { return world_.get(); }
  const comm::Communicator* world() const { return world_.get(); }
  comm::Communicator* tensor() { return tensor_.get(); }
  comm::Communicator* context() { return context_.get(); }
  // The ranks that hold the tokens of one microbatch: tensor and context.
  comm::Communicator* sequence() { return shape_.context == 1 ? tensor_.get() : sequence_.get(); }
  // The ranks among which the experts of a layer are spread: expert tensor and expert.
  comm::Communicator* experts() { return experts_.get(); }
  // One rank of each stage, in the order of the stages.
  comm::Communicator* pipeline() { return pipeline_.get(); }
  // The first and the last stage's rank of pipeline(), on these two; null on others.
  comm::Communicator* ends() { return ends_.get(); }

  // All communicators that there are, the world's first.
  std::vector<comm::Communicator*> groups() const;
  // Of every communicator (comm::Communicator::set_timeout).
  void set_timeout(std::chrono::milliseconds timeout);

  const Reduction& reduction(ReduceGroup group) const { return reductions_[index(resolve(group))]; }
  // Groups of the same ranks are one: the one whose name stands for them.
  ReduceGroup resolve(ReduceGroup group) const;

 private:
  std::unique_ptr<comm::Communicator> split(const std::vector<int>& members, const std::string& name,
                                            comm::Beside beside = comm::Beside::kNothing);
  void make_reduction(ReduceGroup group, const std::vector<int>& members);

  MeshShape shape_;
  MeshPlace place_;
  std::unique_ptr<comm::Communicator> world_, tensor_, context_, sequence_, experts_, pipeline_, ends_;
  struct Owned {
    std::unique_ptr<comm::Communicator> all, shard, replicas;
  };
  std::array<Owned, kReduceGroups> owned_;
  std::array<Reduction, kReduceGroups> reductions_;
};

}  // namespace primus::engine
