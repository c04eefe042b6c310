#include "base/error.h"

#include <cerrno>
#include <cstring>

namespace primus {

int Error::exit_code() const {
  switch (kind_) {
    case ErrorKind::kDependency:
      return 1;
    case ErrorKind::kInvalid:
    case ErrorKind::kUnsupported:
      return 2;
    case ErrorKind::kIo:
    case ErrorKind::kNumerics:
      return 3;
  }
  return 3;
}

std::string Error::render() const {
  std::string text = location_.empty() ? "error: " : location_ + ": error: ";
  text += what();
  if (!snippet_.empty()) text += "\n" + snippet_;
  if (!hint_.empty()) text += "\n  hint: " + hint_;
  return text;
}

Error io_error(const std::string& what, int errno_value, std::string hint) {
  const ErrorKind kind =
      errno_value == ENOENT || errno_value == ENOTDIR ? ErrorKind::kInvalid : ErrorKind::kIo;
  return {kind, what + ": " + std::strerror(errno_value), std::move(hint)};
}

}  // namespace primus
