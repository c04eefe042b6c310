#include "lm/train/nan_search.h"

#include <cmath>
#include <string>

#include "config/trainer_config.h"
#include "lm/events/training_monitor.h"

namespace primus {

void NanSearch::check(std::int64_t iteration) {
  const StepResult& result = progress_.result;
  if (std::isfinite(result.loss) && std::isfinite(result.gradient_norm)) return;
  ++progress_.nan_iterations;
  if (!plan_.c.check_for_nan_in_loss_and_grad) return;
  const bool loss = !std::isfinite(result.loss);
  std::string first = session_.step().find_non_finite();
  if (first.empty()) first = "the backward pass";
  NumericsFault fault{.iteration = iteration,
                      .quantity = loss ? "lm loss" : "gradient norm",
                      .value = loss ? result.loss : result.gradient_norm,
                      .first_operator = first,
                      .clips_gradients = plan_.c.clip_grad > 0};
  judge_weights(iteration, fault);
  plan_.monitor->fault(fault);
  throw fault.to_error();
}

void NanSearch::judge_weights(std::int64_t iteration, NumericsFault& fault) {
  // In later steps, an update of this process may have damaged the weights.
  if (iteration != progress_.first_iteration + 1) return;
  if (plan_.c.load || progress_.first_iteration > 0) {
    fault.damaged = session_.step().find_damaged_weight(session_.store());
    if (plan_.ranks.any(!fault.damaged.empty())) {
      fault.weights = NumericsFault::Weights::kDamaged;
      return;
    }
  }
  if (iteration == 1) fault.weights = NumericsFault::Weights::kUntrained;
}

}  // namespace primus
