// Evaluates a training run on validation and test data, where that is due. All ranks make the same calls;
// rank 0's record decides what was done before, by this process or an earlier one. Internal to lm/train.
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
  // Reads a batch; what happens to a run whose data is broken is the caller's.
  using NextBatch = std::function<const data::Batch&(data::BatchLoader&)>;
  // All must outlive this. `trace` may be null.
  Evaluator(RunPlan& plan, RunProgress& progress, TrainingSession& session, RunTrace* trace,
            NextBatch next_batch);

  // Whether an evaluation belongs to this iteration, recorded or not. The last step must have been asked for
  // before evaluate_due().
  bool belongs_here() const;
  // Evaluates what belongs to this iteration and has no record yet, and ends the run where it has reached
  // target_eval_loss. False: `stop` came first, and something is still due.
  bool evaluate_due(TrainingSummary& summary, const std::atomic<bool>& stop);
  // Where a recorded evaluation of this iteration has reached target_eval_loss, the run ends with it.
  void end_at_target();
  bool target_reached() const { return target_reached_; }
  // About how many seconds the evaluations at the end of the run take. `step`: seconds of a step.
  double seconds_at_end(double step) const;

 private:
  bool regular() const;
  bool unrecorded(const char* data_set);
  // Empty: `stop` came first.
  std::optional<double> evaluate(const data::Dataset& dataset, const char* name, std::int64_t first_sample,
                                 const std::atomic<bool>& stop);

  RunPlan& plan_;
  RunProgress& progress_;
  TrainingSession& session_;
  RunTrace* trace_;
  NextBatch next_batch_;
  std::optional<double> bytes_per_token_;  // of the validation text, on the first rank
  double seconds_ = 0;                     // of the last evaluation on validation data
  bool target_reached_ = false;
};

}  // namespace primus
