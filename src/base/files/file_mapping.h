// One file mapped into memory, guarded against what others do to the file meanwhile.
//
// The kernel answers a read beyond the end of a truncated file with SIGBUS, which ends a process without a
// word. A handler, installed with the first mapping, gives the missing pages as zeros where the reader said
// that it checks (tolerate_truncation), and otherwise ends the process with a message that names the file.
// Faults elsewhere end the process as if there were no handler.
//
// Private to base/: others see MappedFile (file.h). Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/files/file.h"

namespace primus {

class FileMapping {
 public:
  // Maps `size` > 0 bytes of the open file, and keeps the descriptor. FileError where the system refuses;
  // the descriptor is closed then, too.
  FileMapping(Path path, int descriptor, std::size_t size);
  ~FileMapping();
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }
  void tolerate_truncation() const;
  // Error(kInvalid) where the file has another size or date than when it was mapped, or pages were missing.
  void check_unchanged() const;

  struct Slot;  // what the signal handler sees

 private:
  Path path_;
  int descriptor_;
  std::span<const std::byte> bytes_;
  std::int64_t changed_seconds_ = 0, changed_nanoseconds_ = 0;
  Slot* slot_ = nullptr;
};

}  // namespace primus
