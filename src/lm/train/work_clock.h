// Measures the work of this rank in each training step, without waiting for other ranks. Internal to
// lm/train. Not thread-safe.
#pragma once

#include <memory>
#include <utility>

#include "device/device.h"
#include "lm/events/iteration.h"
#include "turbo/devices/work_device.h"

namespace primus {

class WorkClock {
 public:
  // `synchronous`: whether kernels run within the calls of the training thread, so that the host's time is
  // the device's. Otherwise `meter` measures the device; null: only waiting for data is measured. `compute`:
  // the compute stream, which must outlive this object.
  WorkClock(bool synchronous, std::shared_ptr<turbo::WorkMeter> meter, Stream& compute)
      : synchronous_(synchronous), meter_(std::move(meter)), compute_(compute) {}

  // Call these functions in this order in each step: before batches are read, before the passes, after the
  // passes, after the gradients are finished, and after the update. `waited_for_data`: the seconds that the
  // run has waited for batches, in total. end_passes() returns the work of this step, with the update of the
  // previous step; with a meter, that of the newest step that the device has completed, usually two steps
  // before.
  void begin_step(double waited_for_data) { data_ = waited_for_data; }
  void begin_passes(double waited_for_data);
  RankWork end_passes(double waited_for_data);
  void end_gradients();
  void end_update();

 private:
  bool synchronous_;
  std::shared_ptr<turbo::WorkMeter> meter_;
  Stream& compute_;
  double data_ = 0, data_before_passes_ = 0;
  double waited_ = 0;             // seconds that this step waited for data
  double began_ = 0, ended_ = 0;  // the begin and the end of the passes, see own_seconds()
  double update_ = 0;             // seconds of the last update
};

}  // namespace primus
