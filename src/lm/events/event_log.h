// The file of a rank's events, RUN/events/rank-00003.jsonl, with one line per event (docs/formats/events.md).
// It is append-only. A process that resumes from step k starts with a `begin` event of step k, which
// invalidates the lines that earlier processes wrote about later steps.
//
// Lines of steps and phases are buffered until kStepPause has passed since the last write, so that very short
// steps do not each cost a system call. Any other event writes all buffered lines immediately. Only sync()
// syncs the file. While writes fail, up to kMaxPending bytes are buffered; steps are dropped first.
//
// Rare events are all events except steps and phases. To make them readable without parsing all steps, each
// line contains the offset of the previous rare line: EventLine::before. Readers verify this offset, and read
// the complete file if the offset is wrong.
//
// EventLog throws FileError if a line could not be written; the line stays buffered until the next event. One
// thread at a time.
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

  // Does not touch the file.
  explicit EventLog(Path file, Env& env = Env::posix());
  // Tries to write the buffered lines.
  ~EventLog();
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  void write(const RunEvent& event);
  // Makes everything written so far durable.
  void sync();
  std::uint64_t dropped() const { return dropped_; }

 private:
  struct Line {
    std::string head, tail;  // parts of the line before and after the offset
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
  double flushed_ = 0;   // time of the last write or attempt, in seconds of the steady clock
  std::string failure_;  // error of the last write; empty if that write succeeded
  bool opened_ = false, torn_ = false;
  std::uint64_t end_ = 0;                // size of the file in bytes
  std::optional<std::uint64_t> newest_;  // offset of the newest rare line
  std::string phase_;                    // phase of the last line written
};

// Returns RUN/events/rank-00003.jsonl.
Path event_file(const Path& run_folder, int rank);
constexpr const char* kEventsFolder = "events";

// A parsed line.
struct EventLine {
  std::string event;  // kind of the event: name_of(EventKind)
  std::string cause;
  std::int64_t step = 0;
  int rank = 0;
  double time = 0;                      // time in seconds since 1970
  std::optional<std::uint64_t> before;  // offset of the previous rare line
  std::string_view facts;               // facts of the event as a JSON object; a view into the line
  bool is_rare() const { return event != "step" && event != "phase"; }
};
// Parses a line. Returns false if the line is not an event; never throws because of the line's content.
bool read_event(std::string_view line, EventLine& out);

// Calls event(line) in order for each valid event, skipping those that a later `begin` invalidated. Returns
// the number of damaged lines. Memory is bounded except for 16 bytes per process start. Throws FileError.
std::int64_t read_events(const Path& file, const std::function<void(const EventLine&)>& event,
                         Env& env = Env::posix());

// Calls event(line) for valid rare events, newest first, until event() returns false. Reads only the rare
// lines of the file, unless offsets are wrong. Throws FileError.
void read_rare_events(const Path& file, const std::function<bool(const EventLine&)>& event,
                      Env& env = Env::posix());

// Reads the newest valid step. Returns false if there is none. `text` owns the memory that `step` refers to.
bool read_last_step(const Path& file, std::string& text, EventLine& step, Env& env = Env::posix());

}  // namespace primus
