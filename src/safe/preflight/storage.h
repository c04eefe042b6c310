// Can a folder hold checkpoints: the file operations of a save (a file written in place, synced, renamed, the
// folder synced), timed, and the bytes read back. Works through an Env, so that tests can make any of them
// fail. Leaves nothing behind.
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
  Wanted least_rate{50, "a checkpoint of 10 GB should take minutes at the most"};  // MB/s, with the sync
  std::chrono::milliseconds timeout = std::chrono::minutes(2);
};

void check_storage(const StorageOptions& options, NodeReport& report, Env& env = Env::posix());

}  // namespace primus::preflight
