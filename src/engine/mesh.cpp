#include "engine/mesh.h"

#include <stdexcept>
#include <vector>

#include "comm/measuring.h"

namespace primus::engine {

Mesh::Mesh(std::unique_ptr<comm::Communicator> data, int shards) : data_(std::move(data)) {
  const int ranks = data_->size();
  if (shards < 1 || ranks % shards != 0) throw std::logic_error("Mesh: shards do not divide the ranks");
  if (shards == ranks) return;
  std::vector<int> members;
  const int first = data_->rank() / shards * shards, place = data_->rank() % shards;
  for (int i = 0; i < shards; ++i) members.push_back(first + i);
  shard_ = data_->split(members, "shards." + std::to_string(first / shards));
  members.clear();
  for (int rank = place; rank < ranks; rank += shards) members.push_back(rank);
  replicas_ = data_->split(members, "replicas." + std::to_string(place));
}

Mesh Mesh::measuring() const {
  if (size() == 1) return {};
  return {std::make_unique<comm::MeasuringCommunicator>(data_->name(), rank(), size()), shards()};
}

}  // namespace primus::engine
