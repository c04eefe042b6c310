#include "lm/train/work_clock.h"

#include <algorithm>

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
  if (meter_) meter_->begin_step(compute_);
}

RankWork WorkClock::end_passes(double waited_for_data) {
  ended_ = own_seconds();
  waited_ = waited_for_data - data_;
  RankWork work{.data = waited_};
  if (meter_) {
    const auto newest = meter_->newest();
    if (!newest) return work;
    // The host's wait for data lies within the device's time, which is the work as a whole.
    work.data = std::min(newest->data, newest->passes);
    work.passes = newest->passes - work.data;
    work.update = newest->update;
  }
  if (!synchronous_) return work;
  work.passes = ended_ - began_ - (waited_for_data - data_before_passes_);
  work.update = update_;
  return work;
}

void WorkClock::end_gradients() {
  if (meter_) meter_->end_passes(compute_, waited_);
}

void WorkClock::end_update() {
  update_ = own_seconds() - ended_;
  if (meter_) meter_->end_update(compute_);
}

}  // namespace primus
