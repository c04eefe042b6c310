// A folder that is deleted at the end of the test.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/files/file.h"

namespace primus::test {

class TemporaryFolder {
 public:
  // Makes the folder inside `within`.
  explicit TemporaryFolder(const Path& within = std::filesystem::temp_directory_path()) {
    std::string name = (within / "primus-test-XXXXXX").string();
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
  Path operator/(const std::string& name) const { return path_ / name; }
  // Writes a file, makes its folders if necessary, and returns its path.
  std::string write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << content;
    return (path_ / name).string();
  }

 private:
  Path path_;
};

}  // namespace primus::test
