// Removes a folder if the process that made the guard is killed (SIGKILL, out of memory) and cannot remove it
// itself. The guard is a small process, which waits for the end of its starter.
//
// Thread-safety: use from one thread only.
#pragma once

#include <sys/types.h>

#include "base/files/file.h"
#include "comm/rendezvous/socket.h"

namespace primus::supervise {

class FolderGuard {
 public:
  // Starts the guard. Call it before the program has other threads. Throws Error.
  explicit FolderGuard(const Path& folder);
  // Ends the guard, which then removes nothing.
  ~FolderGuard();
  FolderGuard(const FolderGuard&) = delete;
  FolderGuard& operator=(const FolderGuard&) = delete;

 private:
  comm::Socket to_guard_;
  pid_t pid_ = -1;
};

}  // namespace primus::supervise
