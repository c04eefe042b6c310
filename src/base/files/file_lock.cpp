#include "base/files/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

namespace primus {

FileLock::FileLock(const Path& file, bool wait)
    : descriptor_(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) return;
  while (::flock(descriptor_, wait ? LOCK_EX : LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    refused_ = errno == EWOULDBLOCK;
    return;
  }
}

std::optional<FileLock> FileLock::attempt(const Path& file) {
  FileLock lock(file, false);
  if (lock.refused_) return std::nullopt;
  return lock;
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace primus
