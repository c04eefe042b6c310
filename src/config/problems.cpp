#include "config/problems.h"

#include <fmt/format.h>

#include <algorithm>

namespace primus::config {
namespace {

ErrorKind kind_of(const std::vector<Error>& problems) {
  const bool all_unsupported = std::all_of(problems.begin(), problems.end(), [](const Error& problem) {
    return problem.kind() == ErrorKind::kUnsupported;
  });
  return all_unsupported ? ErrorKind::kUnsupported : ErrorKind::kInvalid;
}

std::string listed(const std::vector<Error>& problems, std::size_t count) {
  std::string list;
  const std::size_t shown = std::min(problems.size(), Problems::kMaxShown);
  for (std::size_t i = 0; i < shown; ++i) {
    if (i > 0) list += "\n";
    list += problems[i].render();
  }
  if (count > shown) list += fmt::format("\n... and {} more", count - shown);
  return list;
}

}  // namespace

SeveralProblems::SeveralProblems(std::vector<Error> problems, std::size_t count)
    : Error(kind_of(problems), fmt::format("the settings have {} problems", count)),
      problems_(std::move(problems)),
      count_(count) {
  at({}, listed(problems_, count_));
}

void Problems::throw_if_any() const {
  if (count_ == 1) throw problems_.front();
  if (count_ > 1) throw SeveralProblems(problems_, count_);
}

}  // namespace primus::config
