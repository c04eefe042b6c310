#include "safe/supervise/recovery/event_clock.h"

#include <algorithm>

namespace primus::supervise {

void EventClock::attempt(double time) {
  earliest_ = time;
  newest_event_.reset();
}

double EventClock::at(double time, double now) {
  // One process writes the events in their order, so its clock was set back since the event before this one.
  if (newest_event_ && time < *newest_event_) shift_ += *newest_event_ - time;
  newest_event_ = time;
  shift_ += std::max(0.0, earliest_ - (time + shift_));  // the clock was set back, or is behind
  shift_ -= std::max(0.0, time + shift_ - now);          // it was set forward, or is ahead
  return earliest_ = std::max(earliest_, time + shift_);
}

}  // namespace primus::supervise
