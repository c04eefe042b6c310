// Changes the current folder for a while, so that file names are relative to a job's folder.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <system_error>

namespace primus::cli {

// During the lifetime of this object, `folder` is the current folder if it exists on this machine. Not
// thread-safe: the current folder belongs to the whole process.
class InFolder {
 public:
  explicit InFolder(const std::optional<std::string>& folder) {
    std::error_code error;
    if (!folder || !std::filesystem::is_directory(*folder, error)) return;
    before_ = std::filesystem::current_path();
    std::filesystem::current_path(*folder, error);
    if (error) before_.clear();
  }
  ~InFolder() {
    std::error_code ignored;
    if (changed()) std::filesystem::current_path(before_, ignored);
  }
  InFolder(const InFolder&) = delete;
  InFolder& operator=(const InFolder&) = delete;

  bool changed() const { return !before_.empty(); }

 private:
  std::filesystem::path before_;
};

}  // namespace primus::cli
