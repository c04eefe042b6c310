// Lines of standard input, or of another descriptor, one at a time as they come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace primus::cli {

// Takes time in proportion to the input, and memory for one line. Not thread-safe.
class LineReader {
 public:
  static constexpr std::size_t kMaxLineBytes = std::size_t{64} << 20;

  // `name` stands for the input in errors.
  LineReader(int fd, std::string name, std::size_t max_line = kMaxLineBytes)
      : fd_(fd), name_(std::move(name)), max_line_(max_line) {}

  // False at the end of the input; otherwise the next line, without its end and valid until the next call.
  // Error(kInvalid) at "name:line" for one over `max_line` bytes, before it is read; FileError.
  bool next(std::string_view& line);
  // The line that next() gave last, from 1.
  std::int64_t number() const { return number_; }

 private:
  int fd_;
  std::string name_;
  std::size_t max_line_;
  std::string buffer_;
  std::size_t begin_ = 0, searched_ = 0;  // of the next line; no line end before `searched_`
  std::int64_t number_ = 0;
  bool at_end_ = false;
};

}  // namespace primus::cli
