// The length of a training run: a number of steps for train_epochs, or a clock for train_minutes. Internal to
// lm/train. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "lm/train/evaluator.h"
#include "lm/train/run_plan.h"
#include "lm/train/training_clock.h"

namespace primus {

class RunLength {
 public:
  // Both arguments must outlive this object.
  RunLength(RunPlan& plan, RunProgress& progress) : plan_(plan), progress_(progress) {}

  // Determines the number of steps for train_epochs or train_minutes. With train_minutes, also creates the
  // clock, which continues from the time in the checkpoint. All ranks must call this function.
  void plan();
  // Returns the position of the next step in the learning-rate schedule, in steps. With train_minutes, the
  // position depends on rank 0's clock, which also determines whether the step is the last one. All ranks
  // must call this function.
  double schedule_position(const Evaluator& evaluator);
  // Warns if a run that starts from trained weights has too few steps to learn much.
  void warn_of_few_steps() const;
  // Warns if a run makes very many passes over its data, or repeats samples within a step. Rank 0 may read
  // the data.
  void warn_of_little_data() const;
  // Sets the texts about the length of a run that has no steps left (TrainingSummary::length).
  void describe(TrainingSummary& summary) const;

 private:
  void plan_time();
  // Returns the number of passes after which a warning follows, and the samples of one pass; 0 samples:
  // unknown, or so many that there are fewer passes.
  std::pair<double, std::int64_t> passes_to_warn_of() const;
  // Returns the clock of the run that is continued; empty if the run starts from scratch. If that run counted
  // steps instead of time, the clock has no planned steps, and the member `seconds` contains the number of
  // steps. Reads a checkpoint.
  std::optional<ClockState> continued_clock() const;
  // Runs a few steps before the first step of the run, and returns the seconds per step. All ranks must call
  // it.
  double time_steps();

  RunPlan& plan_;
  RunProgress& progress_;
  std::int64_t epoch_samples_ = 0;  // samples of one pass over the data of post-training; 0 in pre-training
  std::int64_t turns_ = 0;          // number of broadcasts in which rank 0 sent the decision of its clock
};

// Returns the number of steps, with their evaluations, that fit into `seconds` if a step takes `step`
// seconds.
std::int64_t steps_within(double seconds, double step, const config::TrainerConfig& c);

// Returns the number of steps that take `samples` samples. Generated answers have equally many steps, so the
// last answers may take more samples.
std::int64_t steps_of_samples(std::int64_t samples, const config::TrainerConfig& c);

}  // namespace primus
