// Reads the events that a job appends to the files of its ranks (RUN/events/rank-*.jsonl) while it runs. The
// job needs no code for this. Memory is bounded by the longest line of each rank.
//
// Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/files/file.h"
#include "lm/events/event_log.h"

namespace primus::supervise {

class EventTail {
 public:
  // The files of `ranks` ranks from `first`. Skips the events that are in the files now.
  EventTail(const Path& run, int ranks, int first = 0);
  // The file of rank 0, from this byte on.
  static EventTail of_rank_zero(const Path& run, std::int64_t from);
  ~EventTail();
  EventTail(EventTail&& other) noexcept : first_(other.first_), sources_(std::move(other.sources_)) {
    other.sources_.clear();
  }
  EventTail(const EventTail&) = delete;
  EventTail& operator=(const EventTail&) = delete;

  // Calls event(line, rank of the file) for each new line, one rank after the other. Skips damaged lines.
  // A file that cannot be read is tried again at the next call.
  void read(const std::function<void(const EventLine&, int)>& event);

 private:
  struct Source {
    Path path;
    int file = -1;
    ino_t inode = 0;
    off_t end = 0;          // bytes that were read
    std::string line = {};  // begin of an unfinished line
  };
  EventTail() = default;
  static bool open(Source& source);

  int first_ = 0;
  std::vector<Source> sources_;
};

}  // namespace primus::supervise
