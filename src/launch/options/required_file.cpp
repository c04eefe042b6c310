#include "launch/options/required_file.h"

#include <fmt/format.h>

#include "base/error.h"

namespace primus::launch {

void require_file(const Path& file, std::string_view what, const std::string& hint) {
  const auto status = Env::posix().status(file);
  if (!status || status->type == FileStatus::Type::kFolder) {
    throw invalid(fmt::format("there is no {} '{}'", what, file.string()), hint);
  }
}

}  // namespace primus::launch
