#include "lm/train/evaluator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/terminal/terminal.h"
#include "config/trainer_config.h"

namespace primus {
namespace {

// Logs the progress of a long evaluation. The first line comes after kFirst seconds. Each further line comes
// after twice the time of the previous line.
class EvaluationProgress {
 public:
  EvaluationProgress(Logger& log, const char* data_set, std::int64_t batches)
      : log_(log), data_set_(data_set), batches_(batches) {}

  void passed(std::int64_t done) {
    const double seconds = monotonic_seconds() - began_;
    if (seconds < next_ || done == 0 || done >= batches_) return;
    next_ = std::min(2 * seconds, seconds + kMaxBetween);
    const double left = seconds / static_cast<double>(done) * static_cast<double>(batches_ - done);
    log_.info("evaluating on {} data: {} of {} microbatches (eval_iters), about {} left", data_set_, done,
              batches_, human_duration(left));
  }

 private:
  static constexpr double kFirst = 5, kMaxBetween = 600;
  Logger& log_;
  const char* data_set_;
  const std::int64_t batches_;
  const double began_ = monotonic_seconds();
  double next_ = kFirst;
};

}  // namespace

Evaluator::Evaluator(RunPlan& plan, RunProgress& progress, TrainingSession& session, RunTrace* trace,
                     NextBatch next_batch)
    : plan_(plan), progress_(progress), session_(session), trace_(trace), next_batch_(std::move(next_batch)) {
  if (plan.ranks.first())
    bytes_per_token_ = plan.objective->bytes_per_token(plan.datasets, plan.data_request());
}

bool Evaluator::regular() const {
  return progress_.iteration > 0 && progress_.iteration % plan_.c.eval_interval == 0;
}

bool Evaluator::belongs_here() const {
  const bool last = progress_.iteration >= progress_.last_iteration;
  return plan_.c.eval_iters > 0 &&
         ((plan_.datasets.valid && (regular() || last)) || (plan_.datasets.test && last));
}

bool Evaluator::unrecorded(const char* data_set) {
  return plan_.ranks.from_first(!plan_.monitor->evaluated(progress_.iteration, data_set) ? 1 : 0) == 1;
}

bool Evaluator::evaluate_due(TrainingSummary& summary, const std::atomic<bool>& stop) {
  if (!belongs_here()) return true;
  const config::TrainerConfig& c = plan_.c;
  const bool last = progress_.iteration >= progress_.last_iteration;
  const std::int64_t samples = c.eval_iters * c.global_batch_size;
  if (plan_.datasets.valid && (regular() || last) && unrecorded("validation")) {
    // Each evaluation uses different samples. The last evaluation may come between two regular evaluations.
    // If a run is already longer than its new train_iters, the data set has samples for fewer evaluations
    // than the run has made. Then the samples of the last possible evaluation are used.
    const std::int64_t last_turn = std::max<std::int64_t>(plan_.datasets.valid->size() / samples, 1) - 1;
    const std::int64_t turn =
        std::min(progress_.iteration / c.eval_interval - (regular() ? 1 : 0), last_turn);
    const double before = monotonic_seconds();
    summary.validation_loss = evaluate(*plan_.datasets.valid, "validation", turn * samples, stop);
    seconds_ = monotonic_seconds() - before;
    if (!summary.validation_loss) return false;
    end_at_target();
  }
  if (plan_.datasets.test && progress_.iteration >= progress_.last_iteration && unrecorded("test")) {
    summary.test_loss = evaluate(*plan_.datasets.test, "test", 0, stop);
    if (!summary.test_loss) return false;
  }
  return true;
}

void Evaluator::end_at_target() {
  if (!plan_.c.target_eval_loss) return;
  target_reached_ = plan_.ranks.from_first(plan_.monitor->reached_target(progress_.iteration) ? 1 : 0) == 1;
  if (!target_reached_) return;
  progress_.last_iteration = progress_.iteration;
  plan_.log.info("the evaluation at iteration {} has reached target_eval_loss ({}): the run ends",
                 progress_.iteration, *plan_.c.target_eval_loss);
}

double Evaluator::seconds_at_end(double step) const {
  if (plan_.c.eval_iters == 0) return 0;
  // An evaluation runs only forward passes, which are a third of a step's work.
  const double guessed = static_cast<double>(plan_.c.eval_iters) * step / 3;
  const double each = seconds_ > 0 ? seconds_ : guessed;
  return (plan_.datasets.valid ? each : 0) + (plan_.datasets.test ? each : 0);
}

std::optional<double> Evaluator::evaluate(const data::Dataset& dataset, const char* name,
                                          std::int64_t first_sample, const std::atomic<bool>& stop) {
  const config::TrainerConfig& c = plan_.c;
  plan_.monitor->begin_evaluation(progress_.iteration, name);
  const RunTrace::HostWork evaluated(trace_, "evaluation");
  const double began = monotonic_seconds();
  data::BatchLoader batches(dataset, plan_.loader_options(first_sample, c.eval_iters * c.global_batch_size));
  TrainingStep& step = session_.step();
  step.begin_evaluation();
  // the number of microbatches on this rank
  const std::int64_t count = c.eval_iters * plan_.settings.step.microbatches;
  EvaluationProgress progress(plan_.log, name, count);
  try {
    for (std::int64_t i = 0; i < count; ++i) {
      if (plan_.ranks.first()) progress.passed(i);
      if (stop && plan_.ranks.single()) return std::nullopt;
      plan_.phase(fmt::format("evaluating on {} data", name),
                  static_cast<double>(i) / static_cast<double>(count));
      step.evaluate(next_batch_(batches));
    }
  } catch (const StopRequest&) {
    return std::nullopt;
  }
  plan_.phase("");
  const double loss = step.evaluation_loss();
  if (c.check_for_nan_in_loss_and_grad && !std::isfinite(loss)) {
    throw Error(ErrorKind::kNumerics,
                fmt::format("the loss on {} data is {} after iteration {}", name, loss, progress_.iteration),
                "continue from an earlier checkpoint with a lower lr, or check this data");
  }
  const std::int64_t tokens =
      count * plan_.shape.data(plan_.ranks.size()) * c.micro_batch_size * c.seq_length;
  plan_.monitor->evaluation(
      {.iteration = progress_.iteration,
       .data_set = name,
       .lm_loss = loss,
       .tokens = tokens,
       .seconds = monotonic_seconds() - began,
       .bits_per_byte =
           bytes_per_token_ ? std::optional(loss / std::numbers::ln2 / *bytes_per_token_) : std::nullopt});
  return loss;
}

}  // namespace primus
