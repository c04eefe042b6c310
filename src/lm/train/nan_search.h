// Finds the operator that produced the first NaN or infinity of a training step
// (check_for_nan_in_loss_and_grad). Internal to lm/train. Not thread-safe.
#pragma once

#include <cstdint>

#include "lm/events/iteration.h"
#include "lm/train/run_plan.h"
#include "lm/train/step/session.h"

namespace primus {

class NanSearch {
 public:
  // All arguments must outlive this object.
  NanSearch(RunPlan& plan, RunProgress& progress, TrainingSession& session)
      : plan_(plan), progress_(progress), session_(session) {}

  // Checks the result of step `iteration`, which is RunProgress::result. If the loss or the gradient norm is
  // not finite, adds the step to RunProgress::nan_iterations. With check_for_nan_in_loss_and_grad, also
  // publishes a fault and throws Error(kNumerics), which names the operator, or a damaged weight if the first
  // step of this process uses one. The weights must not have changed since the step was computed. All ranks
  // must call check().
  void check(std::int64_t iteration);

 private:
  // Returns the first operator of the step whose result is not finite, on any rank:
  // "layers.3.attention on rank 2".
  std::string find_operator();
  // Returns the first text that is not empty, by rank, with the number of its rank; "" if there is none.
  std::string named_by_ranks(const std::string& own);
  // Sets whether the loaded weights caused a fault of step `iteration`.
  void judge_weights(std::int64_t iteration, NumericsFault& fault);

  RunPlan& plan_;
  RunProgress& progress_;
  TrainingSession& session_;
};

}  // namespace primus
