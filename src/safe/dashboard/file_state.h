// Data that change when a file changes. Plain data.
#pragma once

#include <cstdint>

#include "base/files/file.h"

namespace primus::dashboard {

struct FileState {
  bool exists = false;
  std::uint64_t file = 0, size = 0;  // number of the file in its file system, and its bytes
  std::int64_t changed = 0;          // nanoseconds since 1970
  bool operator==(const FileState&) const = default;
};

// Returns the state of a regular file; exists is false for everything else.
FileState file_state(const Path& path);

}  // namespace primus::dashboard
