// The file of a rank's events, RUN/events/rank-00003.jsonl, with one line per event (docs/formats/events.md).
// The file is append-only. A process that resumes from step k starts with a `begin` event of step k. This
// event invalidates the lines of earlier processes about steps after k.
//
// Lines of steps and phases are buffered until kStepPause has passed since the last write. Very short steps
// therefore share system calls. Any other event immediately writes all buffered lines. Only sync() syncs the
// file to disk. While writes fail, up to kMaxPending bytes are buffered; if the buffer is full, lines of
// steps are dropped first.
//
// Rare events are all events except steps and phases. Each line contains the offset of the previous rare
// line: EventLine::before. Readers can thus find rare events without parsing all steps. Readers verify this
// offset, and read the complete file if the offset is wrong.
//
// EventLog throws FileError if a line could not be written; the line stays buffered until the next event. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/files/append_file.h"
#include "lm/events/run_event.h"

namespace primus {

class EventLog {
 public:
  static constexpr double kStepPause = 0.01;  // seconds between writes of steps and phases
  static constexpr double kRetryPause = 1;    // seconds between retries while writes fail
  static constexpr std::size_t kMaxPending = std::size_t{1} << 20;

  // Does not open or create the file; the first write does.
  explicit EventLog(Path file, Env& env = Env::posix());
  // Tries to write the buffered lines.
  ~EventLog();
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  void write(const RunEvent& event);
  // Syncs all written lines to disk.
  void sync();
  std::uint64_t dropped() const { return dropped_; }

 private:
  struct Line {
    std::string head, tail;  // the line's text before and after the offset
    bool rare;
  };
  void open();
  void flush();
  void append();

  Env& env_;
  AppendFile file_;
  std::deque<Line> waiting_;
  std::size_t waiting_bytes_ = 0;
  std::uint64_t dropped_ = 0;
  double flushed_ = 0;   // time of the last write or attempted write, in seconds of the steady clock
  std::string failure_;  // error of the last write; empty if that write succeeded
  bool opened_ = false, torn_ = false;
  std::uint64_t end_ = 0;                // size of the file in bytes
  std::optional<std::uint64_t> newest_;  // offset of the newest line with a rare event
  std::string phase_;                    // phase in the last written line
};

// Returns RUN/events/rank-00003.jsonl.
Path event_file(const Path& run_folder, int rank);
constexpr const char* kEventsFolder = "events";

// A parsed line of the file.
struct EventLine {
  std::string event;  // kind of the event: name_of(EventKind)
  std::string cause;
  std::int64_t step = 0;
  int rank = 0;
  double time = 0;                      // time in seconds since 1970
  std::optional<std::uint64_t> before;  // offset of the previous line with a rare event
  std::string_view facts;               // facts of the event: a JSON object within the line
  bool is_rare() const { return event != "step" && event != "phase"; }
};
// Parses a line. Returns false if the line is not an event; invalid content never throws.
bool read_event(std::string_view line, EventLine& out);

// Calls event(line) for each valid event, in order; events that a later `begin` invalidated are skipped.
// Returns the number of damaged lines. Memory is bounded, except for 16 bytes per start of a process. Throws
// FileError.
std::int64_t read_events(const Path& file, const std::function<void(const EventLine&)>& event,
                         Env& env = Env::posix());

// Calls event(line) for valid rare events, the newest first, until event() returns false. Reads only the
// lines of rare events; reads all lines if an offset is wrong. Throws FileError.
void read_rare_events(const Path& file, const std::function<bool(const EventLine&)>& event,
                      Env& env = Env::posix());

// Reads the newest valid event of a step. Returns false if there is none. `step` refers to memory of `text`.
bool read_last_step(const Path& file, std::string& text, EventLine& step, Env& env = Env::posix());

}  // namespace primus
