// The length of a training run: steps for train_epochs, or a clock for train_minutes. Internal to lm/train.
// One thread.
#pragma once

#include <cstdint>
#include <optional>

#include "lm/train/evaluator.h"
#include "lm/train/run_plan.h"
#include "lm/train/training_clock.h"

namespace primus {

class RunLength {
 public:
  // Both arguments must outlive this object.
  RunLength(RunPlan& plan, RunProgress& progress) : plan_(plan), progress_(progress) {}

  // Finds the number of steps for train_epochs and train_minutes. With train_minutes it also creates the
  // clock, which continues from the time in the checkpoint. All ranks must call it.
  void plan();
  // Returns the schedule position of the next step, in steps. With train_minutes it depends on rank 0's
  // clock, which also decides whether the step is the last. All ranks must call it.
  double schedule_position(const Evaluator& evaluator);
  // Warns if a run that starts from trained weights has too few steps to learn much.
  void warn_of_few_steps() const;

 private:
  void plan_time();
  // Returns the clock of the run that this run continues; empty if this run starts from scratch. If the
  // earlier run counted steps instead of time, the clock has no planned steps, and its `seconds` hold the
  // number of these steps. Reads a checkpoint.
  std::optional<ClockState> continued_clock() const;
  // Times a few steps before the first one; returns seconds per step. All ranks must call it.
  double time_steps();

  RunPlan& plan_;
  RunProgress& progress_;
  std::int64_t turns_ = 0;  // number of decisions of the clock that rank 0 has broadcast
};

// Returns how many steps of `step` seconds, with their evaluations, fit into `seconds`.
std::int64_t steps_within(double seconds, double step, const config::TrainerConfig& c);

}  // namespace primus
