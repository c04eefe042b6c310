#include "base/files/scratch_folder.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <string>

namespace primus {

ScratchFolder::ScratchFolder(std::string_view name) {
  std::error_code none;
  Path parent = std::filesystem::temp_directory_path(none);
  if (none) parent = "/tmp";
  std::string pattern = (parent / name).string() + "-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr)
    throw FileError(fmt::format("cannot create the folder '{}'", pattern), errno);
  path_ = pattern;
}

ScratchFolder::~ScratchFolder() { try_remove_tree(path_); }

}  // namespace primus
