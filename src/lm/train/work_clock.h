// Measures the work of this rank in each training step, without waiting for other ranks. Internal to
// lm/train. Not thread-safe.
#pragma once

#include "lm/events/iteration.h"

namespace primus {

class WorkClock {
 public:
  // `synchronous`: whether kernels run within the calls of the training thread. Otherwise, only waiting for
  // data is measured, because the host's time is not the device's.
  explicit WorkClock(bool synchronous) : synchronous_(synchronous) {}

  // Call these functions in this order in each step: before batches are read, before the passes, after the
  // passes, and after the update. `waited_for_data`: the seconds that the run has waited for batches, in
  // total. end_passes() returns the work of this step, with the update of the previous step.
  void begin_step(double waited_for_data) { data_ = waited_for_data; }
  void begin_passes(double waited_for_data);
  RankWork end_passes(double waited_for_data);
  void end_update();

 private:
  bool synchronous_;
  double data_ = 0, data_before_passes_ = 0;
  double began_ = 0, ended_ = 0;  // the begin and the end of the passes, see own_seconds()
  double update_ = 0;             // seconds of the last update
};

}  // namespace primus
