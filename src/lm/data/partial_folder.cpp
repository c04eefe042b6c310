#include "lm/data/partial_folder.h"

#include <fmt/format.h>

#include <exception>

#include "base/error.h"

namespace primus::data {

PartialFolder::PartialFolder(const Path& output, Env& env) : env_(env), path_(path_for(output)) {
  make_folders(path_, env_);
  lock_ = FileLock::attempt(path_ / "lock");
  if (lock_) return;
  throw invalid(fmt::format("another process writes '{}'", output.string()),
                "wait for it, or choose another output prefix");
}

PartialFolder::~PartialFolder() {
  if (stays_) return;
  try {
    remove_tree(path_, env_);
  } catch (const std::exception&) {
    // The error that brought us here matters more.
  }
}

void PartialFolder::remove() {
  stays_ = true;
  remove_tree(path_, env_);
}

}  // namespace primus::data
