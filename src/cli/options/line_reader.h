// Reads lines from standard input or another descriptor as they arrive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace primus::cli {

// Needs time linear in the input and memory for one line. Not thread-safe.
class LineReader {
 public:
  static constexpr std::size_t kMaxLineBytes = std::size_t{64} << 20;

  // `name`: name of the input in errors.
  LineReader(int fd, std::string name, std::size_t max_line = kMaxLineBytes)
      : fd_(fd), name_(std::move(name)), max_line_(max_line) {}

  // Returns false at the end of the input. Otherwise sets `line` to the next line without its newline; it is
  // valid until the next call. Throws Error(kInvalid) at "name:line" for a line longer than `max_line` bytes,
  // without reading the entire line. Throws FileError if reading fails.
  bool next(std::string_view& line);
  // Returns the number of the last line that next() returned, from 1.
  std::int64_t number() const { return number_; }

 private:
  int fd_;
  std::string name_;
  std::size_t max_line_;
  std::string buffer_;
  std::size_t begin_ = 0, searched_ = 0;  // start of the next line; [begin_, searched_) has no newline
  std::int64_t number_ = 0;
  bool at_end_ = false;
};

}  // namespace primus::cli
