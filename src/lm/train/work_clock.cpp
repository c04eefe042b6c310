#include "lm/train/work_clock.h"

#include "base/system/rank_waits.h"
#include "lm/train/run_plan.h"

namespace primus {
namespace {

// Returns the time of a clock that stands still while this thread waits for other ranks.
double own_seconds() { return monotonic_seconds() - seconds_waited_for_ranks(); }

}  // namespace

void WorkClock::begin_passes(double waited_for_data) {
  data_before_passes_ = waited_for_data;
  began_ = own_seconds();
}

RankWork WorkClock::end_passes(double waited_for_data) {
  ended_ = own_seconds();
  RankWork work{.data = waited_for_data - data_};
  if (!synchronous_) return work;
  work.passes = ended_ - began_ - (waited_for_data - data_before_passes_);
  work.update = update_;
  return work;
}

void WorkClock::end_update() { update_ = own_seconds() - ended_; }

}  // namespace primus
