// A folder for files of one calculation.
#pragma once

#include <string_view>

#include "base/files/file.h"

namespace primus {

// Makes an empty folder in the system's folder of temporary files, and removes it with its contents when the
// object is destroyed. A process that is killed leaves the folder behind. Throws FileError if the folder
// cannot be made.
class ScratchFolder {
 public:
  // `name`: prefix of the folder's name, before six random characters.
  explicit ScratchFolder(std::string_view name);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const Path& path() const { return path_; }

 private:
  Path path_;
};

}  // namespace primus
