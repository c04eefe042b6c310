// The merged logs of a run's ranks: the last entries, all entries, and entries as they are written.
//
// Entries are merged by the times of their headers, which have whole seconds; entries of the same second are
// sorted by rank, and entries of a rank keep their order. If a clock was set back, an entry counts as written
// at the latest time before it in its file. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "safe/jobs/rank_log.h"

namespace primus::jobs {

struct LogQuery {
  Path run;
  LogLevel level = LogLevel::kInfo;              // the lowest level
  std::function<bool(int rank)> wanted;          // null: all ranks
  std::function<bool(const LogEntry&)> matches;  // null: all entries
  // Whether a last line without an end is shown: no process writes it any more.
  bool unfinished = false;
};

using EntryFn = std::function<void(const LogEntry&)>;

class LogView {
 public:
  explicit LogView(LogQuery query);

  // Number of logs, one per rank and module.
  std::size_t logs() const { return found_.size(); }
  // Calls entry() for the last `count` matching entries, the oldest first. Reads the files from their ends.
  void last(std::size_t count, const EntryFn& entry);
  // Calls entry() for all matching entries. Memory is bounded.
  void all(const EntryFn& entry);
  // Calls entry() for the matching entries that were written since the last call of last(), all() or
  // follow(), also by ranks that have begun since. With `now` (seconds of a clock that does not go
  // backwards), the newest entry of a rank is left for a later call until it is complete
  // (EntriesForward::settle). Without `now`, it is taken as it is, but not a line without an end.
  void follow(const EntryFn& entry, std::optional<double> now = {});
  // As follow(), for the last time: nothing is left, and a last line without an end is shown.
  void finish(const EntryFn& entry);

 private:
  bool fits(const LogEntry& entry) const;
  void read_new(const EntryFn& entry,
                const std::function<void(EntriesForward&, std::vector<LogEntry>&)>& read);
  std::size_t block() const;

  LogQuery query_;
  std::vector<RankLog> found_;
  std::map<Path, std::unique_ptr<EntriesForward>> readers_;  // by folder
};

}  // namespace primus::jobs
