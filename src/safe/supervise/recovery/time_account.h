// Accounts for the time of a supervised run (RunTimes) from the events of rank 0 and the marks of the
// supervisor. The class reads no clock. Its memory does not grow with the run: it keeps the useful time at
// the newest checkpoints only, because a restart continues from a checkpoint.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>

#include "lm/events/supervision.h"

namespace primus::supervise {

class TimeAccount {
 public:
  // `time`: seconds of a clock that is never set, as in all calls below. Times before the latest call count
  // as the latest time.
  explicit TimeAccount(double time) : start_(time), at_(time) {}

  // Events of rank 0.
  void begin(std::int64_t step, double time);                 // ready for the step after `step`
  void step(std::int64_t step, double seconds, double time);  // the step has ended, and took `seconds`
  void phase(std::string_view what, double time);
  void saving(std::int64_t step, double time);   // a save of this step begins
  void copying(std::int64_t step, double time);  // a snapshot of this step in memory begins

  // The supervisor has detected that the job has ended. The time since the latest event counts as
  // `detection`.
  void detected(double time);

  // The job has ended, and `step` is the newest saved step. Until the next begin(), later steps count as
  // repeated, because the run has lost their results.
  void keeps(std::int64_t step) { kept_ = step; }

  // Returns the times up to `time`. The parts add up to `wall`.
  RunTimes up_to(double time) const;

  // The whole state, for another supervisor of the job, whose clock differs: `to_wall` is added to times of
  // this clock to get times of the wall clock. `now`: of this clock; later times count as this time.
  // restore() throws nlohmann::json::exception.
  nlohmann::ordered_json save(double to_wall) const;
  void restore(const nlohmann::ordered_json& saved, double to_wall, double now);

 private:
  enum class State : std::uint8_t { kStarting, kRestarting, kSteps };
  // Adds the time since the latest event to `part`, without `seconds` at the end. Returns the time that
  // remains, at most `seconds`.
  double spend(double RunTimes::*part, double time, double seconds = 0);
  double RunTimes::*idle() const;

  struct Mark {
    std::int64_t step;
    double useful;
    bool in_memory;  // a snapshot, not a checkpoint
  };
  void mark(std::int64_t step, bool in_memory);
  double useful_at(std::int64_t step) const;

  double start_, at_;
  State state_ = State::kStarting;
  bool saving_ = false, in_phase_ = false;
  std::optional<std::int64_t> kept_ = {};  // of keeps(), until begin()
  RunTimes times_ = {};
  std::deque<Mark> marks_ = {};  // useful time when these steps were done
};

}  // namespace primus::supervise
