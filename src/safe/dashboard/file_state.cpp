#include "safe/dashboard/file_state.h"

#include <sys/stat.h>

namespace primus::dashboard {

FileState file_state(const Path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  constexpr std::int64_t kSecond = 1'000'000'000;
  return {.exists = true,
          .file = status.st_ino,
          .size = static_cast<std::uint64_t>(status.st_size),
          .changed = status.st_mtim.tv_sec * kSecond + status.st_mtim.tv_nsec};
}

}  // namespace primus::dashboard
