// Ranks as threads that save and load together, and what they hold of a checkpoint.
#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "base/fault_env.h"
#include "checkpoint_testing.h"

namespace primus {

// The meeting place of the ranks of one test.
class ThreadGroup {
 public:
  explicit ThreadGroup(int ranks) : ranks_(ranks), given_(static_cast<std::size_t>(ranks)) {}

  // A rank is gone: all that wait for it, or will, throw.
  void abort(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (reason_.empty()) reason_ = reason;
    changed_.notify_all();
  }

  // Every rank's text, when all have given theirs.
  std::vector<std::string> meet(int rank, const std::string& own) {
    std::unique_lock lock(mutex_);
    check();
    given_[static_cast<std::size_t>(rank)] = own;
    const std::uint64_t round = round_;
    if (++arrived_ == ranks_) {
      result_ = given_;
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    } else {
      changed_.wait(lock, [&] { return round_ != round || !reason_.empty(); });
      if (round_ == round) check();
    }
    return result_;  // no next round ends before this rank has come to it
  }
  int ranks() const { return ranks_; }

 private:
  void check() const {
    if (!reason_.empty()) throw Error(ErrorKind::kIo, reason_);
  }
  const int ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> given_, result_;
  int arrived_ = 0;
  std::uint64_t round_ = 0;
  std::string reason_;
};

class ThreadRank final : public CheckpointGroup {
 public:
  ThreadRank(ThreadGroup& group, int rank) : group_(group), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return group_.ranks(); }
  std::vector<std::string> gather(const std::string& own) override {
    auto all = group_.meet(rank_, own);
    return rank_ == 0 ? all : std::vector<std::string>();
  }
  std::string broadcast(const std::string& own) override { return group_.meet(rank_, own)[0]; }

 private:
  ThreadGroup& group_;
  int rank_;
};

// Runs action(rank's group) on a thread per rank. A rank whose action ends by an exception that is no Error
// is lost to the others. Returns each rank's error; "" for none, "lost" for such a rank.
template <class Action>
std::vector<std::string> run_ranks(int ranks, Action action) {
  ThreadGroup group(ranks);
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        std::string& error = errors[static_cast<std::size_t>(rank)];
        try {
          error = error_of([&] { action(std::make_shared<ThreadRank>(group, rank)); });
        } catch (const SimulatedCrash&) {
          error = "lost";
          group.abort("rank " + std::to_string(rank) + " was lost");
        }
      });
    }
  }
  return errors;
}

// The runs of tensors that one rank of a group holds whose flat buffer is cut into equal ranges: the tensors
// lie in it one after the other, as a unit's parameters do.
inline std::vector<TensorSource> cut(std::vector<TensorSource> sources, int rank, int ranks) {
  std::int64_t total = 0;
  for (const auto& source : sources) total += source.held().size();
  const std::int64_t length = (total + ranks - 1) / ranks, first = rank * length, last = first + length;
  std::int64_t at = 0;
  for (auto& source : sources) {
    const std::int64_t size = source.held().size();
    const std::int64_t begin = std::clamp(first, at, at + size), end = std::clamp(last, begin, at + size);
    source.run = ElementRun{begin - at, end - at};
    if (source.data != nullptr)
      source.data = static_cast<const std::byte*>(source.data) + (begin - at) * size_of(source.dtype);
    at += size;
  }
  return sources;
}

// What rank `rank` of `ranks` gives to a save of `snapshot`.
inline Snapshot cut(const Snapshot& snapshot, int rank, int ranks) {
  Snapshot part = snapshot;
  if (rank != 0) part.files.clear();  // only rank 0 writes them
  part.model = cut(snapshot.model, rank, ranks);
  part.optimizer = cut(snapshot.optimizer, rank, ranks);
  return part;
}

}  // namespace primus
