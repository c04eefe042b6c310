// Where the unfinished work of one output lies: the folder <output>.partial beside it.
#pragma once

#include <optional>

#include "base/file.h"
#include "lm/data/file_lock.h"

namespace primus::data {

// Makes the folder, and holds it against other processes. Removed with all in it by remove(), or, where an
// exception ends the work, by the destructor, unless keep() was called. A killed process leaves it to the
// next one with the same output.
class PartialFolder {
 public:
  // Error(kInvalid) where another process works there; FileError.
  PartialFolder(const Path& output, Env& env);
  ~PartialFolder();
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;

  const Path& path() const { return path_; }
  void keep() { stays_ = true; }
  void remove();

  static Path path_for(const Path& output) { return output.string() + ".partial"; }

 private:
  Env& env_;
  const Path path_;
  std::optional<FileLock> lock_;
  bool stays_ = false;  // also when it is gone
};

}  // namespace primus::data
