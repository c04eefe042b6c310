// A file that grows by records (log lines, metrics, events), for writers whose failure must not stop the
// program. A record is written completely or not at all. Failures are return values, not exceptions. After a
// failure, the next call tries again.
//
// A record is one write(2), so a process that dies leaves only complete records. If the disk gets full in the
// middle of a record, the partial record is removed. Records reach the kernel immediately. Records reach the
// disk when the kernel writes them back or sync() is called.
//
// Not thread-safe.
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
  // Does not open the file yet. The first append creates the folder and the file.
  AppendFile(Path path, Env& env) : path_(std::move(path)), env_(env) {}

  // Returns false if the record was lost; last_error() returns the reason.
  bool append(std::span<const std::byte> record);
  // Returns false if appended data, or the file's name, might not survive a power failure.
  bool sync();
  // Closes the file, e.g. before renaming it. The next append opens `path` again.
  void close();

  // Returns the size of the complete records in bytes, as of the last append; 0 before the first append and
  // after close().
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
  bool partial_ = false;  // the file may contain a part of a lost record after its first size_ bytes
  std::string last_error_;
};

}  // namespace primus
