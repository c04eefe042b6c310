// A CheckpointGroup over the job's key-value store. A thread can save while the rank's collectives run,
// because the store needs no communicator. The group has a separate timeout, because ranks take different
// times to write.
//
// Errors and thread-safety: as CheckpointGroup. If a rank is lost, the job is aborted, which ends every wait.
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
  // `name`: the group's name, unique in a job. `rank`, `size`: this rank within the group, and the group's
  // size. `store` must outlive this object. `timeout`: max wait for another rank, which may be writing a
  // large file to a slow disk.
  StoreGroup(comm::StoreClient& store, std::string name, int rank, int size,
             std::chrono::milliseconds timeout = std::chrono::hours(1));

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<std::string> gather(const std::string& own) override;
  std::string broadcast(const std::string& own) override;

 private:
  std::string key(const std::string& from) const;
  // Write, read or erase a text of any length. The text is stored as several values of the key-value store.
  void put(const std::string& key, const std::string& text);
  std::string take(const std::string& key);
  void erase(const std::string& key, std::size_t bytes);

  comm::StoreClient& store_;
  std::string name_;
  int rank_, size_;
  std::chrono::milliseconds timeout_;
  std::uint64_t round_ = 0;
  // Only on rank 0: the key and length of each earlier broadcast. Rank 0 erases a broadcast after the next
  // gather(), because until then other ranks may still read the broadcast.
  std::vector<std::pair<std::string, std::size_t>> broadcasts_;
};

}  // namespace primus
