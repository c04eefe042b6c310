// One process at a time builds what several share.
#pragma once

#include <optional>
#include <utility>

#include "base/files/file.h"

namespace primus {

// Held until destroyed; the system frees it when a process dies. The lock is a file, which is empty and
// stays. Where the file system knows no locks, nothing is locked, and the worst is work done twice.
class FileLock {
 public:
  // Waits until no other process or thread holds it.
  static FileLock wait(const Path& file) { return FileLock(file, true); }
  // Nothing where another holds it.
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
