#include "lm/events/line_file.h"

#include <fmt/format.h>

#include <span>

#include "base/error.h"

namespace primus {
namespace {

constexpr std::uint64_t kStride = 64 << 10;

}  // namespace

std::string read_range(File& file, std::uint64_t begin, std::uint64_t end) {
  std::string text(end - begin, '\0');
  text.resize(file.read_at(std::as_writable_bytes(std::span(text.data(), text.size())), begin));
  return text;
}

void read_lines(const Path& path, const std::function<void(std::string_view)>& line, Env& env) {
  read_lines(
      path, [&](std::string_view text, std::uint64_t) { line(text); }, env);
}

void read_lines(const Path& path, const std::function<void(std::string_view, std::uint64_t)>& line,
                Env& env) {
  const auto file = env.open(path, OpenMode::kRead);
  constexpr std::uint64_t kReadBytes = 1 << 20;
  std::string text;
  bool too_long = false;
  for (std::uint64_t at = 0;;) {
    const std::string piece = read_range(*file, at, at + kReadBytes);
    if (piece.empty()) return;
    at += piece.size();
    text += piece;
    const std::uint64_t text_begin = at - text.size();
    std::size_t begin = 0;
    for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      line(too_long ? std::string_view() : std::string_view(text).substr(begin, end - begin),
           text_begin + begin);
      too_long = false;
    }
    text.erase(0, begin);
    if (text.size() > kMaxLine) {
      text.clear();
      too_long = true;
    }
  }
}

LinesBackward::LinesBackward(File& file) : file_(file), begin_(file.size()), end_(begin_) {
  // Skips an incomplete line at the end.
  while (extend()) {
    const std::size_t newline = text_.rfind('\n');
    text_.resize(newline == std::string::npos ? 0 : newline + 1);
    end_ = begin_ + text_.size();
    if (newline != std::string::npos) return;
  }
}

bool LinesBackward::extend() {
  if (begin_ == 0) return false;
  const std::uint64_t from = begin_ > kStride ? begin_ - kStride : 0;
  const std::string piece = read_range(file_, from, begin_);
  if (piece.size() != begin_ - from) {  // the file was truncated while it was read
    begin_ = end_ = 0;
    text_.clear();
    return false;
  }
  text_.insert(0, piece);
  begin_ = from;
  return true;
}

bool LinesBackward::previous(std::string_view& line, std::uint64_t& offset) {
  bool too_long = false;
  for (bool more = true; more; more = extend()) {
    if (end_ == 0 || text_.empty()) {
      if (begin_ == 0) return false;
      continue;
    }
    // The length of the line without its newline.
    const std::size_t length = end_ - begin_ - (too_long ? 0 : 1);
    const std::size_t newline =
        length == 0 ? std::string::npos : std::string_view(text_).substr(0, length).rfind('\n');
    if (newline == std::string::npos && begin_ > 0) {
      too_long |= text_.size() > kMaxLine;
      if (too_long) {
        end_ = begin_;
        text_.clear();
      }
      continue;
    }
    const std::size_t start = newline == std::string::npos ? 0 : newline + 1;
    offset = begin_ + start;
    end_ = offset;
    line_.assign(text_, start, too_long ? 0 : length - start);
    line = line_;
    text_.resize(start);
    return true;
  }
  return false;
}

std::string last_line(const Path& path, Env& env) {
  const auto file = env.open(path, OpenMode::kRead);
  LinesBackward lines(*file);
  std::string_view line;
  std::uint64_t offset = 0;
  if (!lines.previous(line, offset)) return {};
  if (line.empty() && file->size() - offset > kMaxLine)
    throw invalid(fmt::format("'{}' ends in a line of more than a mebibyte", path.string()));
  return std::string(line);
}

std::string last_log_entry(const Path& path, Env& env) {
  const auto file = env.open(path, OpenMode::kRead);
  LinesBackward lines(*file);
  std::string_view line;
  std::uint64_t offset = 0;
  while (lines.previous(line, offset))
    if (line.starts_with('[')) return std::string(line);
  return {};
}

}  // namespace primus
