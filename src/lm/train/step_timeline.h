// Records when the stages of a pipeline work and wait, for a few steps of a run: steps 2, 5, 10, 20 and 50,
// and then every 100th step. One rank of each stage writes a line per recorded step to
// timelines/stage-NNNN.jsonl in the run's folder (docs/formats/events.md). 'primus dashboard' draws the
// steps.
//
// All stages end the sums of a step at the same time, because each waits for the others. So times of stages
// can be compared by the end of the step, whatever the clocks of their machines show.
//
// Internal to lm/train. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/files/append_file.h"
#include "engine/parallel/schedule_clock.h"
#include "engine/runtime/rank.h"
#include "lm/train/run_plan.h"

namespace primus {

class StepTimeline {
 public:
  // Records nothing if the run has one stage, if another rank of this stage records it, or if the device has
  // no clock. All arguments must outlive this object.
  StepTimeline(const RunPlan& plan, engine::Rank& rank);

  static bool is_recorded(std::int64_t step);

  // The clock for TrainingStep::set_schedule_clock(); null: nothing is recorded.
  engine::ScheduleClock* clock() { return clock_ ? &*clock_ : nullptr; }
  // Call these functions for each step: before its work is enqueued, before and after its gradients are
  // summed, and after its result was read.
  void begin(std::int64_t step);
  void end();
  // Sums over ranks, which wait for all ranks, are a separate part.
  class Sums {
   public:
    explicit Sums(StepTimeline& timeline);

   private:
    engine::ScheduleClock::Timed timed_;
  };
  void write(std::int64_t step);

 private:
  const RunPlan& plan_;
  std::optional<engine::ScheduleClock> clock_;
  std::optional<AppendFile> file_;
  int stage_ = 0;
  std::int64_t step_ = 0;  // recorded and not yet written; 0: none
  bool failed_ = false;
};

}  // namespace primus
