// Reads the logs of a run's ranks, RUN/logs/<module>/rank-N/<level>.log, from either end, while ranks write
// and rotate them (base/log.h).
//
// An entry is a line with the header of a log line, and the lines without a header that follow it. Damaged
// and foreign files are read, too: text before the first header belongs to an entry without a time. An entry
// has at most kMaxEntry bytes; the rest becomes a separate entry.
//
// No file stays open between two calls, so a job may have more ranks than a process may have open files.
// Files that disappear while they are read are skipped. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file.h"
#include "base/log.h"

namespace primus::jobs {

constexpr std::size_t kMaxEntry = std::size_t{1} << 20;
constexpr std::size_t kLogBlock = std::size_t{64} << 10;

struct LogEntry {
  // Local time of the writer as the number YYYYMMDDhhmmss; 0: the entry has no header. An entry without a
  // header sorts like the entry before it: see order.
  std::int64_t time = 0;
  std::int64_t order = 0;  // the time by which entries of several ranks are merged
  int rank = 0;
  std::string module = {};
  LogLevel level = LogLevel::kInfo;
  // The entry begins with a later line of an entry that was returned before; `level` is that entry's.
  bool continued = false;
  std::string text = {};  // the lines, without the last line end
};

// The header of a line, "[20260101 12:00:00][rank-0/1][INFO]     [----------trainer.cpp:118] : message".
struct LogHeader {
  std::int64_t time = 0;
  LogLevel level = LogLevel::kInfo;
  std::string_view place = {}, message = {};
};
std::optional<LogHeader> read_header(std::string_view line);

// The logs of one rank and module.
struct RankLog {
  Path folder;
  std::string module;
  int rank = 0;
  std::string stem;  // "info": the files are info.log, info.1.log (older), info.2.log ...
};

// Returns the logs of a run for which wanted(rank) holds, sorted by rank. Chooses for each rank the file with
// all entries of `level`. Follows no symlinks to folders.
std::vector<RankLog> find_rank_logs(const Path& run, LogLevel level, const std::function<bool(int)>& wanted);

// A position in the files of one log.
struct LogPosition {
  ino_t file = 0;  // 0: before the first file
  std::uint64_t offset = 0;
};

// The files of a log at one moment, the oldest first.
class LogFiles {
 public:
  explicit LogFiles(const RankLog& log);

  struct Part {
    ino_t file = 0;
    std::uint64_t size = 0;
    Path path;  // at that moment
  };
  const std::vector<Part>& parts() const { return parts_; }
  // Reads bytes [begin, end) of a part; fewer if the file was removed or became shorter.
  std::string read(const Part& part, std::uint64_t begin, std::uint64_t end) const;

 private:
  Path folder_;
  std::string stem_;
  std::vector<Part> parts_;
};

// Returns the entries of a log, the last entry first.
class EntriesBackward {
 public:
  // `block`: number of bytes that are read at once. `unfinished`: a last line without a line end counts.
  explicit EntriesBackward(const RankLog& log, std::size_t block = kLogBlock, bool unfinished = false);
  // Returns false if there is no earlier entry.
  bool previous(LogEntry& entry);
  // The end of the last line that counted when the object was made.
  LogPosition end() const { return end_; }

 private:
  bool line(std::string& text);
  bool extend();

  RankLog log_;
  std::size_t block_;
  LogFiles files_;
  LogPosition end_;
  std::size_t part_ =
      0;  // number of parts that are not read completely; bytes before begin_ of the last are left
  std::uint64_t begin_ = 0;
  std::string text_;  // bytes from begin_ on that no entry contains yet
  std::string kept_;  // line that belongs to the next entry
  bool has_kept_ = false;
  std::int64_t later_;  // order of the entry that was returned last
};

// Returns the entries of a log in order, from a position to the current end. Remembers what it has read, and
// can be asked again for entries that were written since.
class EntriesForward {
 public:
  explicit EntriesForward(RankLog log, LogPosition from = {});
  // Reads about `bytes` further bytes, and appends their entries. With `all`, text that is not followed by
  // another header is an entry, too; otherwise it is kept for the next call. Returns false if the end was
  // reached.
  bool next(std::vector<LogEntry>& entries, bool all, std::size_t bytes = kLogBlock);
  // Appends the entry that next() has kept if it is complete: no text was added to it for kQuiet seconds, or
  // for kLongQuiet seconds after a line that is still unfinished. Call it after next(), again and again.
  // `now`: seconds of a clock that does not go backwards.
  void settle(std::vector<LogEntry>& entries, double now);
  static constexpr double kQuiet = 1, kLongQuiet = 10;
  // Appends what next() has kept, also a line without an end. Call it if nothing follows.
  void finish(std::vector<LogEntry>& entries);

 private:
  void add(std::string_view line, std::vector<LogEntry>& entries);
  void take_lines(std::string_view text, std::vector<LogEntry>& entries);
  void flush(std::vector<LogEntry>& entries);

  RankLog log_;
  LogPosition at_;
  std::string line_;  // begin of an unfinished line
  LogEntry entry_;    // unfinished entry
  bool has_entry_ = false;
  std::optional<LogLevel> level_;         // of the newest header
  std::int64_t earlier_ = 0;              // largest `order` of the entries before
  std::uint64_t read_ = 0, settled_ = 0;  // bytes read up to now, and up to the last change for settle()
  double changed_ = 0;                    // time of that change
};

}  // namespace primus::jobs
