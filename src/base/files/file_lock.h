// A lock between processes that build a shared file.
#pragma once

#include <optional>
#include <utility>

#include "base/files/file.h"

namespace primus {

// An exclusive lock, held until this object is destroyed. If the process dies, the system releases the lock.
// The lock file is empty and is not removed. On file systems without locks, this object has no effect: two
// processes may do the same work.
class FileLock {
 public:
  // Waits until no other process or thread holds the lock.
  static FileLock wait(const Path& file) { return FileLock(file, true); }
  // Returns nullopt if another process or thread holds the lock.
  static std::optional<FileLock> attempt(const Path& file);

  ~FileLock();
  FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileLock& operator=(FileLock&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }

 private:
  FileLock(const Path& file, bool wait);
  int descriptor_ = -1;
  bool refused_ = false;
};

}  // namespace primus
