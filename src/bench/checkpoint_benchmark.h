// Measures how fast checkpoints are saved to and loaded from a folder, with the code that training uses
// (lm/checkpoint). A save ends when all data is synced to disk. Single-threaded.
#pragma once

#include <cstdint>
#include <functional>

#include "base/files/file.h"
#include "bench/report.h"

namespace primus {

struct CheckpointBenchmarkOptions {
  Path folder;  // a temporary subfolder is created in it and removed at the end
  std::uint64_t bytes = std::uint64_t{1} << 30;  // total size: bf16 weights and their fp32 optimizer states
  std::uint64_t shard_bytes = 5'000'000'000;
  int repetitions = 5;
  // Called before each repetition with the number of finished repetitions.
  std::function<void(std::int64_t done)> progress = {};
};

// Times three operations: a save, a load right after the save (often from the page cache), and a load after
// the page cache was dropped. Omits the last one if the file system cannot drop the cache. Loading verifies
// all checksums. Throws Error if the folder lacks space for two checkpoints or the data read differs from the
// data written.
BenchmarkReport benchmark_checkpoint(const CheckpointBenchmarkOptions& options, Env& env = Env::posix());

}  // namespace primus
