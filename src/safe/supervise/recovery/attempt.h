// An attempt is one process of the job, from its start to its end. The class collects the events of an
// attempt, and judges its end. It reads no clock and no file.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lm/events/event_log.h"
#include "lm/events/run_ending.h"
#include "safe/supervise/observation/hang_watch.h"
#include "safe/supervise/recovery/recovery_policy.h"

namespace primus::supervise {

// The facts about an end that the operating system reports.
struct ProcessEnd {
  int exit_code = 0;            // of the job's first process; 128 + N if signal N killed it
  bool asked_to_stop = false;   // the supervisor has passed on a request to stop
  bool memory_kill = false;     // the kernel killed a process because memory was exhausted
  std::string last_error = {};  // last message of an error log of this attempt
};

// A machine of the job that was lost.
struct LostNode {
  int node = 0;
  std::string text = {};  // one sentence: which machine, and how it was lost
};
inline constexpr int kLostNodeCode = 3;  // exit code of a job that ends because of it

class Attempt {
 public:
  // Adds an event of the file of `rank`.
  void add(const EventLine& event, int rank);

  std::optional<std::int64_t> began() const { return began_; }
  std::int64_t step() const { return step_; }
  std::int64_t checkpoint() const { return checkpoint_; }
  // Where the state of began() came from: RunFacts::state_from.
  const std::string& from() const { return from_; }
  bool ended() const { return ending_.has_value(); }

  // Judges the end. `hang`: the supervisor has killed the job because of this finding; then `hang_rank` is
  // the rank that was found, if any. Sets all except the members `time` and bytes.
  JobEnd judge(const ProcessEnd& process, const std::optional<HangFinding>& hang,
               std::optional<int> hang_rank) const;

 private:
  std::optional<std::int64_t> began_ = {};
  std::int64_t step_ = 0, checkpoint_ = 0, snapshot_ = 0;
  std::string from_ = {};
  std::optional<RunEnding> ending_ = {};  // of rank 0
  std::string fault_ = {}, fault_text_ = {};
  std::optional<int> fault_rank_ = {};
};

// An end whose reason is not recorded, on a disk that has no space for the next checkpoint: the disk was
// full, and the job could not say so. A restart that is refused because of too little space waits for space,
// too. Needs the bytes of `end`. `begun`: this attempt, or an earlier one, was ready for a step, so the job
// is not refused for another reason.
void blame_full_disk(JobEnd& end, bool begun);

// Returns the rank that a message about a lost rank blames: N of the first "rank N was", "rank N is missing"
// or "rank N has exited", or the rank for which a collective waits.
std::optional<int> rank_in(std::string_view text);

}  // namespace primus::supervise
