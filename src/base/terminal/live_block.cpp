#include "base/terminal/live_block.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text/display_width.h"

namespace primus {
namespace {

// Leaves one column free, because some terminals wrap a line that fills all columns.
std::size_t usable(std::size_t width) { return std::max<std::size_t>(width, 2) - 1; }

}  // namespace

std::string LiveBlock::go_to_top(std::size_t width) const {
  // Counts the rows of the drawn lines: a terminal that became narrower has wrapped them.
  std::size_t rows = 0;
  for (const std::size_t columns : drawn_) rows += std::max<std::size_t>(1, (columns + width - 1) / width);
  return rows > 1 ? fmt::format("\r\x1b[{}A", rows - 1) : "\r";
}

std::string LiveBlock::picture(std::size_t width) const {
  std::string text;
  for (const std::string& line : lines_) {
    if (&line != lines_.data()) text += "\n";
    text += fit_width(line, usable(width)) + "\x1b[K";
  }
  return text + "\x1b[J";
}

void LiveBlock::show(const std::vector<std::string>& lines) {
  const std::lock_guard lock(mutex_);
  lines_ = lines;
  const std::size_t width = terminal_.width();
  if (!try_write(terminal_.fd, go_to_top(width) + picture(width), 0)) return;
  drawn_.clear();
  for (const std::string& line : lines_) drawn_.push_back(std::min(display_width(line), usable(width)));
}

bool LiveBlock::print_above(std::string_view text, int wait_ms) {
  const std::lock_guard lock(mutex_);
  if (drawn_.empty()) return try_write(terminal_.fd, text, wait_ms);
  const std::size_t width = terminal_.width();
  if (!try_write(terminal_.fd, go_to_top(width) + "\x1b[J" + std::string(text), wait_ms)) return false;
  drawn_.clear();
  if (try_write(terminal_.fd, picture(width), 0)) {
    for (const std::string& line : lines_) drawn_.push_back(std::min(display_width(line), usable(width)));
  }
  return true;
}

void LiveBlock::finish() {
  const std::lock_guard lock(mutex_);
  if (!drawn_.empty()) try_write(terminal_.fd, "\n", 0);
  drawn_.clear();
  lines_.clear();
}

}  // namespace primus
