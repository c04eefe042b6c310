// The records of a supervisor (safe/supervise) about a run: RUN/events/supervisor.jsonl, with lines in the
// format of docs/formats/events.md. They also tell where the time of the run went.
//
// The kinds are supervise_start, supervise_times, supervise_detection, supervise_action, supervise_recovered,
// supervise_node and supervise_end. The facts of each line contain the number of restarts and, except for
// supervise_start, the times up to the event ("times"). 'primus runs' therefore reads only the newest line.
//
// Free functions and plain data; not synchronized.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file.h"
#include "lm/events/run_job.h"

namespace primus {

// The time since the start of a supervisor, in seconds, divided by what it was used for. The parts add up to
// `wall`.
struct RunTimes {
  double wall = 0;
  double useful = 0;       // steps whose result the run still has
  double repeated = 0;     // steps that were lost with a fault, and were or will be done again
  double detection = 0;    // from the last event before a fault until the supervisor had detected the fault
  double restart = 0;      // from there until the restarted run is ready for its first step
  double startup = 0;      // until the first process is ready for its first step
  double checkpoints = 0;  // steps wait for a save
  double phases = 0;       // evaluations, samples, and other work outside of steps
  double other = 0;        // between steps, and after the last one

  // Returns useful / wall, 0..1; 0 if no time is known.
  double goodput() const { return wall > 0 ? useful / wall : 0; }

  // The lost parts with their names, in the order above.
  struct Part {
    std::string_view name;  // "repeated steps"
    double RunTimes::*seconds;
  };
  static const std::vector<Part>& lost();
};

// Returns one line for people: "useful 91.3 % of 2h 05m; lost: repeated steps 4.1 %, restart 4.6 %". Parts of
// 0.0 % are left out. The percentages add up to 100.0.
std::string describe(const RunTimes& times);

// The object "times" in the facts, without whitespace.
std::string to_json(const RunTimes& times);

// Names of what a restart started again ("rung" in the facts of supervise_action): the process of a lost
// rank, or all processes of the job.
inline constexpr std::string_view kRankRestart = "rank restart", kJobRestart = "job restart";

// The cause of a fault that lost a machine of the job. The job then waits for it, or for a spare.
inline constexpr std::string_view kLostNodeFault = "lost node";

// Returns RUN/events/supervisor.jsonl.
Path supervision_file(const Path& run);

// A restart that a supervisor has decided, and that has not begun.
struct PendingRestart {
  std::string fault = {}, text = {};             // "lost rank"; the error
  double at = 0;                                 // begin of the restart, in seconds since 1970
  std::optional<std::uint64_t> free_bytes = {};  // space on the disk for which the restart waits
  std::optional<RunJob> supervisor = {};         // nullopt: an older version
};

// The newest state that a supervisor recorded.
struct Supervision {
  std::int64_t restarts = 0, rank_restarts = 0;  // of all ranks or of single ones; of single ones
  RunTimes times = {};
  double time = 0;         // of the newest line, in seconds since 1970
  std::string ended = {};  // why the supervisor ended ("finished", "crash loop"); empty: no recorded end
  std::string text = {};   // the error, if it gave up
  std::optional<PendingRestart> pending = {};

  // Returns the goodput, or nullopt if the supervisor has recorded no times yet.
  std::optional<double> goodput() const {
    return times.wall > 0 ? std::optional(times.goodput()) : std::nullopt;
  }
};
// Reads the newest complete line. Returns nullopt if the run was not supervised, or if the file cannot be
// read.
std::optional<Supervision> read_supervision(const Path& run);

}  // namespace primus
