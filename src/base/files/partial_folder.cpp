#include "base/files/partial_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

#include "base/error.h"

namespace primus {

PartialFolder::PartialFolder(const Path& output, Env& env)
    : env_(env), output_(output), path_(path_for(output)) {
  const Path lock = path_ / kLockFile;
  make_folders(path_, env_);
  const std::vector<std::string> names = env_.list(path_);
  if (std::ranges::count(names, kLockFile) == 0) {
    if (!names.empty()) {
      throw invalid(
          fmt::format("'{}' is needed for unfinished work, but already exists and is something else",
                      path_.string()),
          "move it, or choose another output");
    }
    env_.open(lock, OpenMode::kAppend)->close();
    env_.sync_folder(path_);  // the lock file must be durable before any other file
  }
  lock_ = FileLock::attempt(lock);
  if (lock_) return;
  throw invalid(fmt::format("another process writes '{}'", output.string()),
                "wait for it, or choose another output");
}

PartialFolder::~PartialFolder() {
  if (stays_) return;
  try {
    remove();
  } catch (const std::exception&) {
    // This error is ignored, because an earlier error is already being reported.
  }
}

// Removes the lock file last: with the lock file, the folder is recognized as a partial folder after a crash.
void PartialFolder::remove() {
  stays_ = true;
  clear();
  env_.sync_folder(path_);
  remove_tree(path_, env_);
}

void PartialFolder::clear() {
  for (const std::string& name : env_.list(path_)) {
    if (name != kLockFile) env_.remove_file(path_ / name);
  }
}

// The lock file moves with the folder and is removed last. Until then, other processes find either a locked
// folder or no folder.
void PartialFolder::publish() {
  env_.sync_folder(path_);
  env_.rename(path_, output_);
  stays_ = true;
  lock_.reset();
  env_.remove_file(output_ / kLockFile);
  env_.sync_folder(output_);
  env_.sync_folder(output_.has_parent_path() ? output_.parent_path() : Path("."));
}

}  // namespace primus
