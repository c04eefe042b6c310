// Reads line files from either end in bounded memory. Bytes after the last newline are ignored: they belong
// to a line that is torn or still being written. Lines longer than kMaxLine are replaced by empty lines; no
// run writes lines of this length.
//
// Errors: FileError. One thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/files/file.h"

namespace primus {

constexpr std::uint64_t kMaxLine = 1 << 20;  // max bytes per line

// Returns the file's bytes from `begin` to `end`; fewer if the file ends earlier.
std::string read_range(File& file, std::uint64_t begin, std::uint64_t end);

// Calls line(text), or line(text, offset in the file), for each complete line.
void read_lines(const Path& file, const std::function<void(std::string_view)>& line, Env& env = Env::posix());
void read_lines(const Path& file, const std::function<void(std::string_view, std::uint64_t)>& line,
                Env& env = Env::posix());

// Iterates over complete lines from the end of a file.
class LinesBackward {
 public:
  // `file` must outlive this object.
  explicit LinesBackward(File& file);
  // Returns false if no line is left. `line` is valid until the next call.
  bool previous(std::string_view& line, std::uint64_t& offset);

 private:
  bool extend();

  File& file_;
  // text_ holds the file's bytes from begin_ to end_; lines after end_ were already returned
  std::uint64_t begin_, end_;
  std::string text_, line_;
};

// Returns the last complete line; "" if there is none. Throws Error(kInvalid) for a line longer than
// kMaxLine.
std::string last_line(const Path& file, Env& env = Env::posix());

}  // namespace primus
