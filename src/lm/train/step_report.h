// Reports the steps of a training run: losses, speed and memory. Internal to lm/train. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "engine/runtime/rank.h"
#include "lm/events/device_peak.h"
#include "lm/events/training_monitor.h"
#include "lm/train/run_plan.h"
#include "lm/train/step_timeline.h"
#include "lm/train/work_clock.h"

namespace primus {

// A step whose update is enqueued and whose result has not been read yet.
struct EnqueuedStep {
  std::int64_t iteration = 0;
  double learning_rate = 0;
  double began = 0, data_wait_seconds = 0;
  double computed = 1;  // share of the microbatches that were computed; the others have no losses
};

class StepReport {
 public:
  // All arguments must outlive this object. On rank 0 the constructor measures the device's peak throughput,
  // which takes a moment. `meter`: see WorkClock.
  StepReport(const RunPlan& plan, const RunProgress& progress, engine::Rank& rank,
             const engine::MemoryPlan& memory, std::shared_ptr<turbo::WorkMeter> meter);

  // Returns the duration in seconds of the step whose result is RunProgress::result. `ended`: the time at
  // which the result was read (monotonic_seconds()).
  double seconds_of(const EnqueuedStep& step, double ended);
  // Publishes the record of this step.
  void publish(const EnqueuedStep& step, double seconds, double ended);
  // Returns the clock of this rank's own work.
  WorkClock& work() { return work_; }
  // Returns the record of what the stages do in some steps.
  StepTimeline& timeline() { return timeline_; }

 private:
  void measure_peak();

  const RunPlan& plan_;
  const RunProgress& progress_;
  engine::Rank& rank_;
  const engine::MemoryPlan memory_;
  const DeviceProperties device_properties_;
  std::optional<DevicePeak> peak_;  // set only on rank 0
  std::optional<ThroughputMeter> meter_;
  double last_step_ended_ = 0;
  WorkClock work_;
  StepTimeline timeline_;
};

}  // namespace primus
