// The file of a rank's events, RUN/events/rank-00003.jsonl: one line per event (docs/formats/events.md). It
// is only appended to. A process that resumes from step k begins with an event `begin` of step k, which makes
// void what earlier processes wrote of later steps.
//
// A line of a step or a phase waits in memory while less than kStepPause has passed since the last write, so
// that steps of a millisecond do not each cost a system call; any other event writes all lines at once.
// Nothing is synced but by sync(). While the disk takes nothing, up to kMaxPending bytes wait; steps are
// dropped first.
//
// To find rare events without reading all steps, each line names the offset of the newest line before it that
// is of no step or phase: EventLine::before. Readers check it, and read the whole file where it is wrong.
//
// EventLog throws FileError where a line could not be written; it waits for the next event. One thread at a
// time.
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
  static constexpr double kStepPause = 0.01;  // seconds
  static constexpr double kRetryPause = 1;    // seconds, while the disk takes nothing
  static constexpr std::size_t kMaxPending = std::size_t{1} << 20;

  // Touches no file.
  explicit EventLog(Path file, Env& env = Env::posix());
  // Writes what waits, if it can.
  ~EventLog();
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  void write(const RunEvent& event);
  // Everything up to here on the disk.
  void sync();
  std::uint64_t dropped() const { return dropped_; }

 private:
  struct Line {
    std::string head, tail;  // before and after the offset
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
  double flushed_ = 0;   // seconds of the steady clock, of the last write or try
  std::string failure_;  // of the last write; empty: it worked
  bool opened_ = false, torn_ = false;
  std::uint64_t end_ = 0;                // size of the file
  std::optional<std::uint64_t> newest_;  // offset of the newest rare line
  std::string phase_;                    // written last
};

// RUN/events/rank-00003.jsonl
Path event_file(const Path& run_folder, int rank);
constexpr const char* kEventsFolder = "events";

// A line, parsed.
struct EventLine {
  std::string event;  // name_of(EventKind)
  std::string cause;
  std::int64_t step = 0;
  int rank = 0;
  double time = 0;                      // seconds since 1970
  std::optional<std::uint64_t> before;  // see above
  std::string_view facts;               // a JSON object, within the line
  bool is_rare() const { return event != "step" && event != "phase"; }
};
// False: the line is no event, whatever it holds. Never throws for its sake.
bool read_event(std::string_view line, EventLine& out);

// Calls event(line) for each event that counts, in order: without those that a later `begin` made void.
// Returns how many lines are damaged. Memory is bounded but for 16 bytes per process start. Throws FileError.
std::int64_t read_events(const Path& file, const std::function<void(const EventLine&)>& event,
                         Env& env = Env::posix());

// The newest events first: every event that counts but steps and phases, as far back as `event` returns true.
// Reads only these lines of the file, unless their offsets are wrong. Throws FileError.
void read_rare_events(const Path& file, const std::function<bool(const EventLine&)>& event,
                      Env& env = Env::posix());

// The newest step that counts. False: there is none. `text` holds what `step` refers to.
bool read_last_step(const Path& file, std::string& text, EventLine& step, Env& env = Env::posix());

}  // namespace primus
