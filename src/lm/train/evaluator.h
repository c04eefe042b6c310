// Evaluates the trained model on validation and test data when an evaluation is due. All ranks make the same
// calls. The records of rank 0 show which evaluations are already done, by this process or an earlier one.
// Internal to lm/train.
#pragma once

#include <atomic>
#include <functional>
#include <optional>

#include "lm/train/run_plan.h"
#include "lm/train/run_trace.h"
#include "lm/train/step/session.h"

namespace primus {

class Evaluator {
 public:
  // Function that reads the next batch, and handles errors in the data.
  using NextBatch = std::function<const data::Batch&(data::BatchLoader&)>;
  // All arguments must outlive this object. `trace` may be null.
  Evaluator(RunPlan& plan, RunProgress& progress, TrainingSession& session, RunTrace* trace,
            NextBatch next_batch);

  // Returns whether an evaluation is scheduled for this iteration, even if it is already recorded. Before
  // calling evaluate_due(), read the result of the last step.
  bool belongs_here() const;
  // Runs the evaluations of this iteration that are not yet recorded, and ends the run if target_eval_loss is
  // reached. If `stop` is set before all evaluations are complete, returns false; the evaluations then remain
  // due.
  bool evaluate_due(TrainingSummary& summary, const std::atomic<bool>& stop);
  // Ends the run at this iteration if the loss recorded for this iteration has reached target_eval_loss.
  void end_at_target();
  bool target_reached() const { return target_reached_; }
  // Estimates the time in seconds of the evaluations at the end of the run. `step`: seconds per step.
  double seconds_at_end(double step) const;

 private:
  bool regular() const;
  bool unrecorded(const char* data_set);
  // Returns the mean loss; empty if `stop` was set before the evaluation was complete.
  std::optional<double> evaluate(const data::Dataset& dataset, const char* name, std::int64_t first_sample,
                                 const std::atomic<bool>& stop);

  RunPlan& plan_;
  RunProgress& progress_;
  TrainingSession& session_;
  RunTrace* trace_;
  NextBatch next_batch_;
  std::optional<double> bytes_per_token_;  // text bytes per token of the validation data; set only on rank 0
  double seconds_ = 0;                     // duration in seconds of the last evaluation on validation data
  bool target_reached_ = false;
};

}  // namespace primus
