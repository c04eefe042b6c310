// Where the unfinished work of one output lies: the folder <output>.partial beside it.
#pragma once

#include <optional>

#include "base/files/file.h"
#include "base/files/file_lock.h"

namespace primus {

// Makes the folder, and holds it against other processes by a lock file in it, which also says that it is one
// of these. Removed with all in it by remove(), or, where an exception ends the work, by the destructor,
// unless keep() was called. A killed process leaves it to the next one with the same output.
class PartialFolder {
 public:
  static constexpr const char* kLockFile = ".partial-lock";

  // Error(kInvalid) where another process works there, or where something lies that is nobody's unfinished
  // work; FileError.
  PartialFolder(const Path& output, Env& env);
  ~PartialFolder();
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;

  const Path& path() const { return path_; }
  void keep() { stays_ = true; }
  void remove();
  // Removes the files that a killed process left.
  void clear();
  // Makes it the output: syncs and renames it to `output`, which must not exist or be an empty folder.
  void publish();

  static Path path_for(const Path& output) { return output.string() + ".partial"; }

 private:
  Env& env_;
  const Path output_, path_;
  std::optional<FileLock> lock_;
  bool stays_ = false;  // also when it is gone
};

}  // namespace primus
