// Threads as ranks that save and load together, and the parts of a checkpoint that each rank holds.
#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "base/fault_env.h"
#include "checkpoint_testing.h"

namespace primus {

// Synchronises the ranks of one test.
class ThreadGroup {
 public:
  explicit ThreadGroup(int ranks) : ranks_(ranks), given_(static_cast<std::size_t>(ranks)) {}

  // Records that a rank has ended. Every current and later wait for this rank throws.
  void abort(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (reason_.empty()) reason_ = reason;
    changed_.notify_all();
  }

  // Waits for all ranks, and returns their texts.
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
    return result_;  // the next round cannot end before this rank enters it
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

// Runs action(group of the rank) on one thread per rank. If an action throws an exception that is not an
// Error, the other ranks lose that rank. Returns each rank's error: "" for none, "lost" for a lost rank.
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

// Restricts tensors to the elements that rank `rank` holds. The tensors lie one after another in the group's
// flat buffer, like the parameters of a unit. The buffer is cut into one equal range per rank.
inline std::vector<TensorSource> cut(std::vector<TensorSource> sources, int rank, int ranks) {
  std::int64_t total = 0;
  for (const auto& source : sources) total += elements(source.held());
  const std::int64_t length = (total + ranks - 1) / ranks, first = rank * length, last = first + length;
  std::int64_t at = 0;
  for (auto& source : sources) {
    const std::int64_t size = elements(source.held());
    const std::int64_t begin = std::clamp(first, at, at + size), end = std::clamp(last, begin, at + size);
    source.runs = one_run(begin - at, end - at);
    if (source.data != nullptr)
      source.data = static_cast<const std::byte*>(source.data) + (begin - at) * size_of(source.dtype);
    at += size;
  }
  return sources;
}

// Returns the part of `snapshot` that rank `rank` saves.
inline Snapshot cut(const Snapshot& snapshot, int rank, int ranks) {
  Snapshot part = snapshot;
  if (rank != 0) part.files.clear();  // only rank 0 writes the files
  part.model = cut(snapshot.model, rank, ranks);
  part.optimizer = cut(snapshot.optimizer, rank, ranks);
  return part;
}

// Fails the test unless the checkpoint part equals `sources`.
inline void expect_tensors(const CheckpointReader& reader, TensorPart part,
                           const std::vector<TensorSource>& sources) {
  for (const TensorSource& source : sources) {
    std::vector<std::byte> bytes(source.held_bytes());
    reader.read_runs(part, source.name, source.dtype, source.shape, source.order, source.held(), bytes);
    const auto* held = static_cast<const std::byte*>(source.data);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), held)) << source.name;
  }
}

// A model with special tensors: empty, scalar, odd sizes, and two whose axes have another order in files.
struct ShardedSnapshot {
  explicit ShardedSnapshot(std::int64_t iteration) {
    const auto seed = static_cast<std::uint64_t>(iteration) * 100;
    model.add("embed.weight", DType::kBF16, {37, 6}, seed + 1);
    model.add("empty", DType::kBF16, {0, 5}, seed + 2);
    model.add("scale", DType::kF32, {}, seed + 3);
    model.add("experts.down_proj", DType::kBF16, {3, 5, 4}, seed + 4);  // [3, 4, 5] in memory
    model.sources.back().order = {.dims = {3, 4, 5}, .axes = {0, 2, 1}};
    model.add("experts.gate_up_proj", DType::kF32, {2, 3, 14}, seed + 5);  // gate and up interleaved
    model.sources.back().order = {.dims = {2, 2, 7, 3}, .axes = {0, 3, 2, 1}};
    model.add("norm.weight", DType::kF32, {7}, seed + 6);
    for (const char* state : {"exp_avg", "momentum_buffer"}) {
      for (const std::size_t i : {0U, 3U, 4U}) {
        const TensorSource& of = model.sources[i];
        if (i == 0 && state[0] == 'm') continue;  // states may lack some parameters
        optimizer.add(optimizer_tensor_name(state, of.name), DType::kF32, of.shape, seed + 10 + i);
        optimizer.sources.back().order = of.order;
      }
    }
    snapshot.files = {{"config.json", R"({"model_type":"llama"})"}};
    fill_snapshot(snapshot, iteration, model, optimizer);
  }

  // Fails the test unless the checkpoint has exactly these contents.
  void expect_equal(const CheckpointReader& reader) const {
    EXPECT_EQ(reader.iteration(), snapshot.iteration);
    EXPECT_EQ(reader.trainer_state(), snapshot.trainer_state);
    expect_tensors(reader, TensorPart::kModel, snapshot.model);
    expect_tensors(reader, TensorPart::kOptimizer, snapshot.optimizer);
  }

  TestTensors model, optimizer;
  Snapshot snapshot;
};

}  // namespace primus
