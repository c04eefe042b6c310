// A file that grows record by record (log lines, metrics, events), for writers whose failure must not stop
// anything: a record is in the file whole or not at all, a failure is an answer and not an exception, and the
// next call tries again.
//
// A record is one write(2), so a process that dies leaves whole records only; a full disk that took half of
// one gets that half removed. Records reach the kernel at once, and the disk when the system likes or sync()
// is called.
//
// One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/files/file.h"

namespace primus {

class AppendFile {
 public:
  // Opens nothing yet. The folder is made with the file.
  AppendFile(Path path, Env& env) : path_(std::move(path)), env_(env) {}

  // False when the record was lost; last_error() says why.
  bool append(std::span<const std::byte> record);
  // False when what was appended, or the file's name, may not survive a power failure.
  bool sync();
  // Lets go of the file, e.g. to rename it. The next append opens `path` anew.
  void close();

  // Bytes of whole records, as far as this object knows; 0 before the first append.
  std::uint64_t size() const { return size_; }
  const Path& path() const { return path_; }
  const std::string& last_error() const { return last_error_; }

 private:
  void open();
  void remove_partial_record();

  Path path_;
  Env& env_;
  std::unique_ptr<File> file_;
  std::uint64_t size_ = 0;
  bool name_synced_ = false;
  bool partial_ = false;  // beyond size_ there may be the beginning of a lost record
  std::string last_error_;
};

}  // namespace primus
