// Translates the times of rank 0's events, which are of the wall clock of its machine, to the supervisor's
// clock, which never goes back. A wall clock that is set, or that differs between machines, then changes no
// duration.
//
// Not thread-safe.
#pragma once

#include <optional>

namespace primus::supervise {

class EventClock {
 public:
  // The rest of the events belong to an attempt that started at `time` of the supervisor's clock.
  void attempt(double time);

  // Returns the time of an event. `time`: of the event; `now`: when it is read, on the supervisor's clock.
  // The result never decreases, and lies between the start of the attempt and `now`.
  double at(double time, double now);

 private:
  double shift_ = 0;                         // from the wall clock to the supervisor's
  double earliest_ = 0;                      // of the next event, on the supervisor's clock
  std::optional<double> newest_event_ = {};  // on the wall clock
};

}  // namespace primus::supervise
