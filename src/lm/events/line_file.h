// Reads line files from either end in bounded memory. Bytes after the last newline are ignored. Such bytes
// belong to a line that was cut by a crash or is still being written. A line longer than kMaxLine is read as
// an empty line; Primus writes only shorter lines.
//
// Errors: FileError. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/files/file.h"

namespace primus {

constexpr std::uint64_t kMaxLine = 1 << 20;  // max bytes per line

// Returns the file's bytes [begin, end), or fewer if the file is shorter.
std::string read_range(File& file, std::uint64_t begin, std::uint64_t end);

// Calls line(text), or line(text, offset in the file), for each complete line.
void read_lines(const Path& file, const std::function<void(std::string_view)>& line, Env& env = Env::posix());
void read_lines(const Path& file, const std::function<void(std::string_view, std::uint64_t)>& line,
                Env& env = Env::posix());

// Returns the complete lines of a file, the last line first.
class LinesBackward {
 public:
  // `file` must outlive this object.
  explicit LinesBackward(File& file);
  // Reads the next earlier line; returns false if there is none. `line` is valid until the next call.
  bool previous(std::string_view& line, std::uint64_t& offset);

 private:
  bool extend();

  File& file_;
  // text_ contains the bytes [begin_, end_) of the file; lines after end_ were already returned
  std::uint64_t begin_, end_;
  std::string text_, line_;
};

// Returns the last complete line; "" if there is none. Throws Error(kInvalid) for a line longer than
// kMaxLine.
std::string last_line(const Path& file, Env& env = Env::posix());

// Returns the first line of the newest entry of a rank's log; "" if there is none. Further lines of an entry
// do not begin with "[" (docs/formats/run-folder.md).
std::string last_log_entry(const Path& file, Env& env = Env::posix());

}  // namespace primus
