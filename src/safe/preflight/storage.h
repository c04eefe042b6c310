// Checks whether a folder can hold checkpoints. Performs and times the file operations of a save (write,
// sync, rename, sync of the folder) and reads the data back. Works through an Env, so tests can make any
// operation fail. Removes its files.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/files/file.h"
#include "safe/preflight/check.h"

namespace primus::preflight {

struct StorageOptions {
  Path folder;
  std::uint64_t bytes = 256U << 20;
  Wanted min_rate{50, "a checkpoint of 10 GB should take minutes at the most"};  // MB/s, including sync
  std::chrono::milliseconds timeout = std::chrono::minutes(2);
};

void check_storage(const StorageOptions& options, NodeReport& report, Env& env = Env::posix());

}  // namespace primus::preflight
