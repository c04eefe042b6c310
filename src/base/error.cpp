#include "base/error.h"

#include <cerrno>
#include <cstring>

namespace primus {

Error& Error::add_hint(const std::string& hint) {
  if (!hint_.empty()) hint_ += "; ";
  hint_ += hint;
  return *this;
}

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

ErrorKind kind_of_errno(int errno_value) {
  switch (errno_value) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case EEXIST:
    case ENOTEMPTY:
    case ENAMETOOLONG:
    case ELOOP:
    case EACCES:
    case EPERM:
    case EROFS:
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return ErrorKind::kInvalid;
    default:
      return ErrorKind::kIo;
  }
}

Error io_error(const std::string& what, int errno_value, std::string hint) {
  return {kind_of_errno(errno_value), what + ": " + std::strerror(errno_value), std::move(hint)};
}

}  // namespace primus
