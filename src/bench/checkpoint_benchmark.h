// How fast a folder takes and gives checkpoints: by the very code that saves and loads those of training
// (lm/checkpoint), with everything synced to the disk before a save counts as over. One thread.
#pragma once

#include <cstdint>
#include <functional>

#include "base/files/file.h"
#include "bench/report.h"

namespace primus {

struct CheckpointBenchmarkOptions {
  Path folder;                                   // a folder of its own is made in it, and removed at the end
  std::uint64_t bytes = std::uint64_t{1} << 30;  // of tensors, in bf16 weights and their fp32 states
  std::uint64_t shard_bytes = 5'000'000'000;
  int repetitions = 5;
  std::function<void(std::int64_t done)> progress = {};  // before each repetition, of those that are done
};

// Saves, loads right after a save (often from the system's cache) and loads with the cache dropped, as far as
// the file system heeds that. Loading checks every checksum. Throws Error where the folder has no room for
// two checkpoints, and where what is read is not what was written.
BenchmarkReport benchmark_checkpoint(const CheckpointBenchmarkOptions& options, Env& env = Env::posix());

}  // namespace primus
