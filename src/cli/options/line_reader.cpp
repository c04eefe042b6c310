#include "cli/options/line_reader.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "base/files/file.h"
#include "base/terminal/terminal.h"

namespace primus::cli {

bool LineReader::next(std::string_view& line) {
  constexpr std::size_t kReadBytes = 64 << 10;
  while (true) {
    const std::size_t newline = buffer_.find('\n', searched_);
    const std::size_t end = std::min(newline, buffer_.size());
    if (end - begin_ > max_line_) {
      throw invalid(fmt::format("the line has more than {}", human_bytes(static_cast<double>(max_line_))),
                    "end lines with a line feed; split a long text into several lines")
          .at(fmt::format("{}:{}", name_, number_ + 1));
    }
    if (newline != std::string::npos || (at_end_ && begin_ < end)) {
      line = std::string_view(buffer_).substr(begin_, end - begin_);
      begin_ = searched_ = std::min(end + 1, buffer_.size());
      ++number_;
      return true;
    }
    if (at_end_) return false;
    buffer_.erase(0, begin_);
    begin_ = 0;
    searched_ = buffer_.size();
    buffer_.resize(searched_ + kReadBytes);
    ssize_t count;
    do count = ::read(fd_, buffer_.data() + searched_, kReadBytes);
    while (count < 0 && errno == EINTR);
    buffer_.resize(searched_ + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    if (count < 0) throw FileError("cannot read " + name_, errno);
    at_end_ = count == 0;
  }
}

}  // namespace primus::cli
