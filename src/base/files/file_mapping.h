// A file mapped into memory, protected against changes of the file by other programs.
//
// Reading beyond the end of a truncated file raises SIGBUS, which normally kills a process without a message.
// The first mapping installs a handler of this signal. For readers that have called tolerate_truncation(),
// the handler replaces missing pages by zeros. For other readers, the handler ends the process with a message
// that names the file. Other faults end the process as if there were no handler.
//
// Private to base/; use MappedFile (file.h). Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/files/file.h"

namespace primus {

class FileMapping {
 public:
  // Maps `size` > 0 bytes of the open file and takes ownership of the descriptor. If the mapping fails,
  // closes the descriptor and throws FileError.
  FileMapping(Path path, int descriptor, std::size_t size);
  ~FileMapping();
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }
  void tolerate_truncation() const;
  // Throws Error(kInvalid) if the size or time of the file changed since mapping, or if pages were missing.
  void check_unchanged() const;

  struct Slot;  // the part that the signal handler reads

 private:
  Path path_;
  int descriptor_;
  std::span<const std::byte> bytes_;
  std::int64_t changed_seconds_ = 0, changed_nanoseconds_ = 0;
  Slot* slot_ = nullptr;
};

}  // namespace primus
