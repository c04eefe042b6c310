#include "safe/jobs/rank_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <map>
#include <system_error>
#include <tuple>
#include <utility>

namespace primus::jobs {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::pair<LogLevel, std::string_view>, 4> kLevels = {{{LogLevel::kDebug, "DEBUG"},
                                                                           {LogLevel::kInfo, "INFO"},
                                                                           {LogLevel::kWarning, "WARNING"},
                                                                           {LogLevel::kError, "ERROR"}}};
constexpr std::array<const char*, 4> kStems = {"debug", "info", "warning", "error"};

template <class Number>
std::optional<Number> whole(std::string_view text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.starts_with('-')) return std::nullopt;
  return value;
}

// Returns N of "rank-N".
std::optional<int> rank_of(std::string_view folder) {
  constexpr std::string_view kPrefix = "rank-";
  return folder.starts_with(kPrefix) ? whole<int>(folder.substr(kPrefix.size())) : std::nullopt;
}

bool is_folder(const Path& path) {
  std::error_code none;
  return fs::is_directory(fs::symlink_status(path, none));
}

std::optional<struct stat> status_of(const Path& file) {
  struct stat status {};
  if (::lstat(file.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return status;
}

Path generation(const Path& folder, const std::string& stem, int number) {
  return folder / (number == 0 ? stem + ".log" : fmt::format("{}.{}.log", stem, number));
}

// Returns the largest N of the files stem.N.log; 0: none.
int oldest_generation(const Path& folder, const std::string& stem) {
  int oldest = 0;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    const std::string_view end = ".log";
    if (!name.starts_with(stem + ".") || !name.ends_with(end) || name.size() <= stem.size() + 1 + end.size())
      continue;
    const auto number = whole<int>(
        std::string_view(name).substr(stem.size() + 1, name.size() - stem.size() - 1 - end.size()));
    oldest = std::max(oldest, number.value_or(0));
  }
  return oldest;
}

// Takes the text up to `end` from `rest`. Returns false if `end` is missing.
bool take(std::string_view& rest, std::string_view end, std::string_view& text) {
  const std::size_t at = rest.find(end);
  if (at == std::string_view::npos) return false;
  text = rest.substr(0, at);
  rest.remove_prefix(at + end.size());
  return true;
}

// Reads bytes of a file if it is the file with this number.
std::optional<std::string> read_part(const Path& path, ino_t number, std::uint64_t begin, std::uint64_t end) {
  const int file = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  struct stat status {};
  std::optional<std::string> text;
  if (::fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_ino == number) {
    text.emplace(end - begin, '\0');
    std::size_t got = 0;
    while (got < text->size()) {
      const ssize_t count =
          ::pread(file, text->data() + got, text->size() - got, static_cast<off_t>(begin + got));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) break;
      got += static_cast<std::size_t>(count);
    }
    text->resize(got);
  }
  ::close(file);
  return text;
}

}  // namespace

std::optional<LogHeader> read_header(std::string_view line) {
  constexpr std::size_t kTime = 17;  // "20260101 12:00:00"
  if (line.size() < kTime + 2 || line[0] != '[' || line[kTime + 1] != ']') return std::nullopt;
  LogHeader header;
  for (std::size_t i = 1; i <= kTime; ++i) {
    const char expected = i == 9 ? ' ' : i == 12 || i == 15 ? ':' : '0';
    if (expected != '0' ? line[i] != expected : line[i] < '0' || line[i] > '9') return std::nullopt;
    if (expected == '0') header.time = header.time * 10 + (line[i] - '0');
  }
  std::string_view rest = line.substr(kTime + 2), rank, level, filling;
  if (!rest.starts_with("[rank-") || !take(rest, "]", rank) || !rest.starts_with('[')) return std::nullopt;
  rest.remove_prefix(1);
  if (!take(rest, "]", level)) return std::nullopt;
  const auto* const known = std::ranges::find(kLevels, level, &std::pair<LogLevel, std::string_view>::second);
  if (known == kLevels.end()) return std::nullopt;
  header.level = known->first;
  header.message = rest;
  if (take(rest, "[", filling) && take(rest, "] : ", header.place)) {
    header.place.remove_prefix(std::min(header.place.find_first_not_of('-'), header.place.size()));
    header.message = rest;
  }
  return header;
}

std::vector<RankLog> find_rank_logs(const Path& run, LogLevel level, const std::function<bool(int)>& wanted) {
  std::vector<RankLog> logs;
  std::error_code error;
  for (const auto& module : fs::directory_iterator(run / "logs", error)) {
    if (!is_folder(module.path())) continue;
    std::error_code unreadable;
    for (const auto& entry : fs::directory_iterator(module.path(), unreadable)) {
      const auto rank = rank_of(entry.path().filename().string());
      if (!rank || !wanted(*rank) || !is_folder(entry.path())) continue;
      // The file of this level, or else a file with more entries, or else one with fewer.
      const int first = static_cast<int>(level);
      std::vector<int> order{first};
      for (int i = first - 1; i >= 0; --i) order.push_back(i);
      for (int i = first + 1; i < static_cast<int>(kStems.size()); ++i) order.push_back(i);
      for (const int i : order) {
        const std::string stem = kStems[static_cast<std::size_t>(i)];
        if (!status_of(generation(entry.path(), stem, 0)) && !status_of(generation(entry.path(), stem, 1)))
          continue;
        logs.push_back({entry.path(), module.path().filename().string(), *rank, stem});
        break;
      }
    }
  }
  std::ranges::sort(logs, {}, [](const RankLog& log) { return std::tie(log.rank, log.module); });
  return logs;
}

LogFiles::LogFiles(const RankLog& log) : folder_(log.folder), stem_(log.stem) {
  // Newest first: a rotation during this loop then shows a file twice, and hides none.
  const int oldest = oldest_generation(folder_, stem_) + 1;
  for (int number = 0; number <= oldest; ++number) {
    const Path path = generation(folder_, stem_, number);
    const auto status = status_of(path);
    if (!status || std::ranges::find(parts_, status->st_ino, &Part::file) != parts_.end()) continue;
    parts_.push_back({status->st_ino, static_cast<std::uint64_t>(status->st_size), path});
  }
  std::ranges::reverse(parts_);
}

std::string LogFiles::read(const Part& part, std::uint64_t begin, std::uint64_t end) const {
  if (auto text = read_part(part.path, part.file, begin, end)) return *text;
  // The file was rotated, and has another name now.
  const int oldest = oldest_generation(folder_, stem_);
  for (int number = 0; number <= oldest; ++number) {
    if (auto text = read_part(generation(folder_, stem_, number), part.file, begin, end)) return *text;
  }
  return {};
}

EntriesBackward::EntriesBackward(const RankLog& log, std::size_t block, bool unfinished)
    : log_(log), block_(block), files_(log), later_(std::numeric_limits<std::int64_t>::max()) {
  part_ = files_.parts().size();
  if (part_ == 0) return;
  // Searches the end of the last complete line of the newest file.
  const LogFiles::Part& newest = files_.parts().back();
  end_ = {newest.file, 0};
  if (unfinished) end_.offset = newest.size;
  for (std::uint64_t end = unfinished ? 0 : newest.size; end > 0;) {
    const std::uint64_t begin = end - std::min<std::uint64_t>(end, block_);
    const std::size_t at = files_.read(newest, begin, end).rfind('\n');
    if (at != std::string::npos) {
      end_.offset = begin + at + 1;
      break;
    }
    end = begin;
  }
  begin_ = end_.offset;
}

// Puts an earlier piece of the files in front of text_. Returns false if there is none.
bool EntriesBackward::extend() {
  while (part_ > 0) {
    if (begin_ > 0) {
      const std::uint64_t begin = begin_ - std::min<std::uint64_t>(begin_, block_);
      text_.insert(0, files_.read(files_.parts()[part_ - 1], begin, begin_));
      begin_ = begin;
      return true;
    }
    if (!text_.empty()) return false;  // the first line of this file is complete
    if (--part_ > 0) begin_ = files_.parts()[part_ - 1].size;
  }
  return false;
}

// Takes the last line of text_.
bool EntriesBackward::line(std::string& text) {
  for (;;) {
    const std::size_t size = text_.size() - (text_.ends_with('\n') ? 1 : 0);
    const std::size_t at = size == 0 ? std::string::npos : text_.rfind('\n', size - 1);
    const bool complete = at != std::string::npos || text_.size() >= kMaxEntry;
    if (!complete && extend()) continue;
    if (text_.empty()) return false;
    const std::size_t begin = at == std::string::npos ? 0 : at + 1;
    text.assign(text_, begin, size - begin);
    text_.resize(begin);
    return true;
  }
}

bool EntriesBackward::previous(LogEntry& entry) {
  std::vector<std::string> lines;  // the last line first
  std::size_t bytes = 0;
  entry = {.rank = log_.rank, .module = log_.module};
  std::string text = std::exchange(kept_, {});
  for (bool has_text = std::exchange(has_kept_, false); has_text || line(text); has_text = false) {
    const auto header = read_header(text);
    if (!header && bytes > 0 && bytes + text.size() >= kMaxEntry) {
      kept_ = std::move(text);
      has_kept_ = true;
      break;
    }
    bytes += text.size() + 1;
    if (header) {
      entry.time = header->time;
      entry.level = header->level;
    }
    lines.push_back(std::move(text));
    if (header) break;
  }
  if (lines.empty()) return false;
  entry.text.reserve(bytes);
  for (std::size_t i = lines.size(); i-- > 0;) entry.text += lines[i] + (i > 0 ? "\n" : "");
  later_ = entry.time > 0 ? std::min(later_, entry.time) : later_;
  entry.order = later_;
  return true;
}

EntriesForward::EntriesForward(RankLog log, LogPosition from) : log_(std::move(log)), at_(from) {}

void EntriesForward::flush(std::vector<LogEntry>& entries) {
  if (std::exchange(has_entry_, false)) entries.push_back(std::exchange(entry_, {}));
}

void EntriesForward::add(std::string_view line, std::vector<LogEntry>& entries) {
  const auto header = read_header(line);
  if (header || (has_entry_ && entry_.text.size() + line.size() >= kMaxEntry)) flush(entries);
  if (has_entry_) {
    entry_.text.append("\n").append(line);
    return;
  }
  has_entry_ = true;
  entry_ = {
      .rank = log_.rank, .module = log_.module, .continued = !header && level_, .text = std::string(line)};
  if (header) {
    entry_.time = header->time;
    level_ = header->level;
  }
  entry_.level = level_.value_or(entry_.level);
  entry_.order = earlier_ = std::max(earlier_, entry_.time);
}

bool EntriesForward::next(std::vector<LogEntry>& entries, bool all, std::size_t bytes) {
  const auto newest = status_of(generation(log_.folder, log_.stem, 0));
  const bool unchanged =
      newest && newest->st_ino == at_.file && static_cast<std::uint64_t>(newest->st_size) == at_.offset;
  bool more = false;
  if (!unchanged) {
    const LogFiles files(log_);
    std::size_t i = 0;
    while (i < files.parts().size() && files.parts()[i].file != at_.file) ++i;
    if (i == files.parts().size()) {  // nothing was read yet, or the file was removed
      i = 0;
      at_.offset = 0;
    }
    if (i < files.parts().size()) {
      const LogFiles::Part& part = files.parts()[i];
      at_.file = part.file;
      if (at_.offset > part.size) {  // the file was truncated
        at_.offset = 0;
        if (!line_.empty()) add(std::exchange(line_, {}), entries);
      }
      const std::string text =
          files.read(part, at_.offset, std::min<std::uint64_t>(part.size, at_.offset + bytes));
      at_.offset += text.size();
      read_ += text.size();
      take_lines(text, entries);
      const bool is_last = i + 1 == files.parts().size();
      if (!is_last && (at_.offset >= part.size || text.empty())) {
        if (!line_.empty()) add(std::exchange(line_, {}), entries);
        at_ = {files.parts()[i + 1].file, 0};
      }
      more = !is_last || (!text.empty() && at_.offset < part.size);
    }
  }
  if (!more && all) flush(entries);
  return more;
}

void EntriesForward::settle(std::vector<LogEntry>& entries, double now) {
  if (std::exchange(settled_, read_) != read_) changed_ = now;
  if (now - changed_ >= (line_.empty() ? kQuiet : kLongQuiet)) flush(entries);
}

void EntriesForward::finish(std::vector<LogEntry>& entries) {
  if (!line_.empty()) add(std::exchange(line_, {}), entries);
  flush(entries);
}

void EntriesForward::take_lines(std::string_view text, std::vector<LogEntry>& entries) {
  std::string_view line;
  while (take(text, "\n", line)) {
    if (line_.empty()) {
      add(line, entries);
    } else {
      add(line_.append(line), entries);
      line_.clear();
    }
  }
  line_.append(text);
  if (line_.size() >= kMaxEntry) add(std::exchange(line_, {}), entries);
}

}  // namespace primus::jobs
