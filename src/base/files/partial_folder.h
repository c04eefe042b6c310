// The folder for the unfinished work of one output: <output>.partial, next to it.
#pragma once

#include <optional>

#include "base/files/file.h"
#include "base/files/file_lock.h"

namespace primus {

// Creates the folder and locks it against other processes. The lock file also marks it as a partial folder.
// remove() removes the folder with its contents. Without a call of keep(), the destructor also removes the
// folder, e.g. after an exception. The folder of a killed process is reused by the next process with the same
// output.
class PartialFolder {
 public:
  static constexpr const char* kLockFile = ".partial-lock";

  // Throws Error(kInvalid) if another process uses the folder, or if the path exists but is not a partial
  // folder. Throws FileError if a file operation fails.
  PartialFolder(const Path& output, Env& env);
  ~PartialFolder();
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;

  const Path& path() const { return path_; }
  void keep() { stays_ = true; }
  void remove();
  // Removes files left by a killed process.
  void clear();
  // Syncs the folder and renames it to `output`, which must not exist or must be an empty folder.
  void publish();

  static Path path_for(const Path& output) { return output.string() + ".partial"; }

 private:
  Env& env_;
  const Path output_, path_;
  std::optional<FileLock> lock_;
  bool stays_ = false;  // the destructor must not remove the folder
};

}  // namespace primus
