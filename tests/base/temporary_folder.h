// A folder that is gone at the end of the test.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "base/files/file.h"

namespace primus::test {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "primus-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw FileError("cannot create a temporary folder", errno);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const Path& path() const { return path_; }

 private:
  Path path_;
};

}  // namespace primus::test
