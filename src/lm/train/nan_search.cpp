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
  const std::string first = find_operator();
  NumericsFault fault{.iteration = iteration,
                      .quantity = loss ? "lm loss" : "gradient norm",
                      .value = loss ? result.loss : result.gradient_norm,
                      .first_operator = first,
                      .clips_gradients = plan_.c.clip_grad > 0};
  judge_weights(iteration, fault);
  plan_.monitor->fault(fault);
  throw fault.to_error();
}

std::string NanSearch::find_operator() {
  std::string first = named_by_ranks(session_.step().find_non_finite());
  if (first.empty()) first = named_by_ranks(session_.step().find_non_finite_gradient());
  // The value is repeated neither forwards nor backwards, for example because it comes from a collective.
  return first.empty() ? "the backward pass" : first;
}

std::string NanSearch::named_by_ranks(const std::string& own) {
  CheckpointGroup* const group = plan_.ranks.group();
  if (!group) return own;
  std::string all;
  const std::vector<std::string> answers = group->gather(own);
  for (std::size_t rank = 0; rank < answers.size() && all.empty(); ++rank) {
    if (!answers[rank].empty()) all = answers[rank] + " on rank " + std::to_string(rank);
  }
  return group->broadcast(all);
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
