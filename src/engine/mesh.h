// The mesh: how the ranks of a job share the work, one axis for each way of sharing, and a communicator for
// each axis. Ranks are numbered as in Megatron-LM; of its axes this has data parallelism.
//
// Data parallelism can shard over fewer ranks than it has (hybrid sharding, Megatron's
// num_distributed_optimizer_instances): `shards` consecutive ranks hold one copy between them, and ranks with
// the same place in their groups of shards hold the same. Reductions go over the shards first.
//
// A mesh belongs to its rank. Not thread-safe.
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace primus::engine {

class Mesh {
 public:
  // One rank, alone.
  Mesh() = default;
  // `data`: all ranks. `shards` divides its size (std::logic_error). All ranks build their meshes together.
  Mesh(std::unique_ptr<comm::Communicator> data, int shards);

  // The same shape, without peers: it counts what would be sent.
  Mesh measuring() const;

  int size() const { return data_ ? data_->size() : 1; }
  int rank() const { return data_ ? data_->rank() : 0; }
  int shards() const { return shard_ ? shard_->size() : size(); }

  // Only where size() > 1.
  comm::Communicator& data() { return *data_; }
  const comm::Communicator& data() const { return *data_; }
  // The ranks that hold one copy of what is sharded.
  comm::Communicator& shard() { return shard_ ? *shard_ : *data_; }
  // The ranks that hold the same shard; null: there is one copy only.
  comm::Communicator* replicas() { return replicas_.get(); }

 private:
  std::unique_ptr<comm::Communicator> data_;
  std::unique_ptr<comm::Communicator> shard_, replicas_;  // hybrid sharding only
};

}  // namespace primus::engine
