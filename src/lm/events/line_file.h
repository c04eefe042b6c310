// Files of lines, read in bounded memory from either end. Bytes after the last newline are torn, or still
// being written, and are no line. Lines longer than kMaxLine are passed on empty: no run writes such.
//
// Errors: FileError. One thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/files/file.h"

namespace primus {

constexpr std::uint64_t kMaxLine = 1 << 20;  // bytes

// The file's bytes from `begin` to `end`; fewer where it ends before.
std::string read_range(File& file, std::uint64_t begin, std::uint64_t end);

// Calls line(text) for each whole line, or line(text, offset in the file).
void read_lines(const Path& file, const std::function<void(std::string_view)>& line, Env& env = Env::posix());
void read_lines(const Path& file, const std::function<void(std::string_view, std::uint64_t)>& line,
                Env& env = Env::posix());

// Whole lines, the last one first.
class LinesBackward {
 public:
  // `file` must outlive this.
  explicit LinesBackward(File& file);
  // False: there is none left. `line` is valid until the next call.
  bool previous(std::string_view& line, std::uint64_t& offset);

 private:
  bool extend();

  File& file_;
  std::uint64_t begin_, end_;  // text_ is the file's bytes between them; all lines after end_ were given
  std::string text_, line_;
};

// The last whole line; empty where there is none. Throws Error(kInvalid) for a line that is longer than
// kMaxLine.
std::string last_line(const Path& file, Env& env = Env::posix());

}  // namespace primus
