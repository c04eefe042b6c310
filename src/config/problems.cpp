#include "config/problems.h"

#include <fmt/format.h>

#include <algorithm>

namespace primus::config {

void Problems::throw_if_any() const {
  if (problems_.empty()) return;
  if (problems_.size() == 1) throw problems_.front();
  std::string list;
  for (size_t i = 0; i < std::min(problems_.size(), kMaxShown); ++i) {
    if (i > 0) list += "\n";
    list += problems_[i].render();
  }
  if (problems_.size() > kMaxShown) list += fmt::format("\n... and {} more", problems_.size() - kMaxShown);
  const bool all_unsupported = std::all_of(problems_.begin(), problems_.end(), [](const Error& problem) {
    return problem.kind() == ErrorKind::kUnsupported;
  });
  Error all(all_unsupported ? ErrorKind::kUnsupported : ErrorKind::kInvalid,
            fmt::format("the settings have {} problems", problems_.size()));
  throw all.at({}, list);
}

}  // namespace primus::config
