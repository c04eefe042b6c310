// How long a training run is: steps of train_epochs, or a clock with train_minutes. Internal to lm/train. One
// thread.
#pragma once

#include <cstdint>
#include <optional>

#include "lm/train/evaluator.h"
#include "lm/train/run_plan.h"
#include "lm/train/training_clock.h"

namespace primus {

class RunLength {
 public:
  // Both must outlive this.
  RunLength(RunPlan& plan, RunProgress& progress) : plan_(plan), progress_(progress) {}

  // Finds the steps of train_epochs and train_minutes, and starts the clock's plan with the latter, which
  // continues from the checkpoint's clock. All ranks call it alike.
  void plan();
  // The next step's place in the schedule, in steps, by rank 0's clock. With train_minutes it depends on time
  // and decides whether the step is the last. All ranks call it alike.
  double schedule_position(const Evaluator& evaluator);
  // Warns if a run that starts from weights has so few steps that it hardly learns.
  void warn_of_few_steps() const;

 private:
  void plan_time();
  // The clock of the run that this one continues; nothing if it begins anew. Without planned steps if that
  // run counted steps and no time: `seconds` are then those steps. Reads a checkpoint.
  std::optional<ClockState> continued_clock() const;
  // Seconds of a step, timed before the first one. All ranks call it alike.
  double time_steps();

  RunPlan& plan_;
  RunProgress& progress_;
  std::int64_t turns_ = 0;  // of the clock
};

// Steps of `step` seconds that fit `seconds`, evaluations included.
std::int64_t steps_within(double seconds, double step, const config::TrainerConfig& c);

}  // namespace primus
