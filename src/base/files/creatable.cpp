#include "base/files/creatable.h"

#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

namespace primus {

bool can_create_files_in(const Path& wanted) {
  Path folder = std::filesystem::absolute(wanted).lexically_normal();
  const auto status_of = [](const Path& path) -> std::optional<FileStatus> {
    try {
      return Env::posix().status(path);
    } catch (const FileError&) {  // a file in place of a folder, or a folder without permission
      return FileStatus{};
    }
  };
  while (folder != folder.parent_path() && !status_of(folder)) folder = folder.parent_path();
  struct statfs system = {};
  // No permission is missing below /proc and /sys for root, but the kernel creates no files there.
  const bool is_virtual = statfs(folder.c_str(), &system) == 0 &&
                          (system.f_type == PROC_SUPER_MAGIC || system.f_type == SYSFS_MAGIC);
  const auto status = status_of(folder);
  return status && status->type == FileStatus::Type::kFolder && !is_virtual &&
         access(folder.c_str(), W_OK | X_OK) == 0;
}

}  // namespace primus
