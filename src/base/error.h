// Errors caused by the environment: files, networks, user input. base/check.h is for bugs of this program.
//
// An Error says what happened, where (a file, a position in a config), and what to do next. Any part of the
// program may throw an Error. Only the command line prints an Error and turns its kind into the exit code of
// the process.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace primus {

enum class ErrorKind {
  kDependency,   // a library, driver or plug-in is missing            exit code 1
  kInvalid,      // bad arguments, config, input data, a full disk     exit code 2
  kIo,           // the operating system failed: EIO ...               exit code 3
  kNumerics,     // NaN or Inf where a finite number was needed        exit code 3
  kUnsupported,  // valid, but not supported here                      exit code 2
};

class Error : public std::runtime_error {
 public:
  // `what`: one sentence without a final period. `hint`: the next step ("run ...", "set ..."), may be empty.
  Error(ErrorKind kind, std::string what, std::string hint = {})
      : std::runtime_error(std::move(what)), kind_(kind), hint_(std::move(hint)) {}

  // Sets the place of the error, e.g. "exp.yaml:12:5", and optionally the source line with a caret below it.
  Error& at(std::string location, std::string snippet = {}) {
    location_ = std::move(location);
    snippet_ = std::move(snippet);
    return *this;
  }

  // Appends a further next step.
  Error& add_hint(const std::string& hint);

  ErrorKind kind() const { return kind_; }
  const std::string& hint() const { return hint_; }
  const std::string& location() const { return location_; }
  const std::string& snippet() const { return snippet_; }
  int exit_code() const;
  // Returns the message as printed: "location: error: what\nsnippet\n  hint: ...".
  std::string render() const;

 private:
  ErrorKind kind_;
  std::string hint_, location_, snippet_;
};

// These functions make errors of the most frequent kinds.
inline Error invalid(std::string what, std::string hint = {}) {
  return {ErrorKind::kInvalid, std::move(what), std::move(hint)};
}
inline Error unsupported(std::string what, std::string hint = {}) {
  return {ErrorKind::kUnsupported, std::move(what), std::move(hint)};
}
// Returns the kind of an errno value of a file operation. Returns kInvalid if the user can fix it by choosing
// another path: the path is missing, has the wrong type, is not permitted, or has no free space (disk, quota,
// file size limit). Returns kIo if the system failed: a broken disk, a lost network, no free descriptors.
ErrorKind kind_of_errno(int errno_value);
// Appends strerror(errno_value): io_error("cannot read 'x'", errno) -> "cannot read 'x': Permission denied".
Error io_error(const std::string& what, int errno_value, std::string hint = {});

}  // namespace primus
