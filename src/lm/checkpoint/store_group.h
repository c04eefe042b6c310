// A CheckpointGroup over the key-value store of a job: needs no communicator, so that a thread may save while
// the rank's collectives run, and has a timeout of its own, since ranks write for different times.
//
// Errors and thread-safety: as CheckpointGroup; a rank that is lost ends every wait through the job's abort.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "comm/rendezvous/store_client.h"
#include "lm/checkpoint/checkpoint_group.h"

namespace primus {

class StoreGroup final : public CheckpointGroup {
 public:
  // `name`: the group's, used once in a job. `rank`, `size`: within the group. `store` outlives this.
  // `timeout`: how long one rank waits for another, which may be writing a large file to a slow disk.
  StoreGroup(comm::StoreClient& store, std::string name, int rank, int size,
             std::chrono::milliseconds timeout = std::chrono::hours(1));

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<std::string> gather(const std::string& own) override;
  std::string broadcast(const std::string& own) override;

 private:
  std::string key(const std::string& from) const;
  // A text as values of the store, however long it is.
  void put(const std::string& key, const std::string& text);
  std::string take(const std::string& key);
  void erase(const std::string& key, std::size_t bytes);

  comm::StoreClient& store_;
  std::string name_;
  int rank_, size_;
  std::chrono::milliseconds timeout_;
  std::uint64_t round_ = 0;
  // Rank 0: keys and lengths of broadcasts, which the others may still be reading until they come to the next
  // gather.
  std::vector<std::pair<std::string, std::size_t>> broadcasts_;
};

}  // namespace primus
