// Evaluates a training run on validation and test data when an evaluation is due. All ranks make the same
// calls. Rank 0's record decides which evaluations this or an earlier process has already done. Internal to
// lm/train.
#pragma once

#include <atomic>
#include <functional>
#include <optional>

#include "lm/train/run_plan.h"
#include "lm/train/run_trace.h"
#include "lm/train/session.h"

namespace primus {

class Evaluator {
 public:
  // Reads a batch; the caller handles broken data.
  using NextBatch = std::function<const data::Batch&(data::BatchLoader&)>;
  // All arguments must outlive this object. `trace` may be null.
  Evaluator(RunPlan& plan, RunProgress& progress, TrainingSession& session, RunTrace* trace,
            NextBatch next_batch);

  // Whether an evaluation belongs to this iteration, recorded or not. Before evaluate_due(), the result of
  // the last step must have been read.
  bool belongs_here() const;
  // Runs the evaluations of this iteration that have no record yet, and ends the run if it has reached
  // target_eval_loss. Returns false if `stop` was set first; the evaluation is then still due.
  bool evaluate_due(TrainingSummary& summary, const std::atomic<bool>& stop);
  // Ends the run at this iteration if its recorded evaluation has reached target_eval_loss.
  void end_at_target();
  bool target_reached() const { return target_reached_; }
  // Returns approximately how many seconds the evaluations at the end of the run take. `step`: the seconds
  // that a step takes.
  double seconds_at_end(double step) const;

 private:
  bool regular() const;
  bool unrecorded(const char* data_set);
  // Returns the mean loss; empty if `stop` was set first.
  std::optional<double> evaluate(const data::Dataset& dataset, const char* name, std::int64_t first_sample,
                                 const std::atomic<bool>& stop);

  RunPlan& plan_;
  RunProgress& progress_;
  TrainingSession& session_;
  RunTrace* trace_;
  NextBatch next_batch_;
  std::optional<double> bytes_per_token_;  // bytes per token of the validation text; only on rank 0
  double seconds_ = 0;                     // duration of the last evaluation on validation data
  bool target_reached_ = false;
};

}  // namespace primus
