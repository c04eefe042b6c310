#include "lm/events/training_monitor.h"

#include <chrono>
#include <cmath>
#include <vector>

namespace primus {
namespace {

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool due(std::int64_t iteration, int interval) { return interval > 0 && iteration % interval == 0; }

// Megatron's tags, so that curves of both lie in one chart; those with "throughput/" beyond TFLOP/s are ours.
std::vector<Scalar> scalars_of(const IterationRecord& record) {
  const Speed& now = record.throughput.now;
  std::vector<Scalar> scalars = {{"lm loss", record.lm_loss},
                                 {"learning-rate", record.learning_rate},
                                 {"batch-size", static_cast<double>(record.global_batch_size)},
                                 {"loss-scale", record.loss_scale},
                                 {"iteration-time", now.seconds_per_iteration},
                                 {"throughput", now.flops_per_second / 1e12},
                                 {"throughput/tokens-per-second", now.tokens_per_second},
                                 {"throughput/data-wait-share", now.data_wait_share}};
  if (now.mfu) scalars.push_back({"throughput/mfu", *now.mfu});
  if (record.grad_norm) scalars.push_back({"grad-norm", *record.grad_norm});
  if (record.num_zeros) scalars.push_back({"num-zeros", static_cast<double>(*record.num_zeros)});
  for (const auto& [name, value] : record.other_losses) scalars.push_back({name, value});
  if (!record.routing.empty()) {
    const RoutingSummary routing = summarise(record.routing);
    scalars.push_back({"moe/imbalance", routing.imbalance});
    scalars.push_back({"moe/imbalance-worst-layer", routing.worst.imbalance});
    scalars.push_back({"moe/dropped", routing.dropped});
  }
  if (record.memory) scalars.push_back({"mem-allocated-bytes", record.memory->used});
  return scalars;
}

}  // namespace

TrainingMonitor::TrainingMonitor(const RunFolder& run, MonitorOptions options, Logger& log, Env& env)
    : options_(options),
      log_(log),
      metrics_(run.metrics_file(), options.resume_iteration, env),
      evaluations_(run.evaluations_file(), options.resume_iteration, env),
      warnings_(run.warnings_file(), options.resume_iteration, env) {
  if (options_.samples) {
    samples_.emplace(run.samples_file(), options_.resume_iteration, env);
    if (has_iteration(run.samples_file(), options_.resume_iteration, env))
      last_sample_ = options_.resume_iteration;
  }
  // Replays recorded evaluations, so that their warnings are not repeated.
  for (const EvaluationRecord& record :
       recorded_evaluations(run.evaluations_file(), options_.resume_iteration, env)) {
    detectors_.evaluation(record);
  }
  if (options_.tensorboard) {
    events_.emplace(run.tensorboard(), options_.resume_iteration + 1, wall_seconds(), env);
  }
  if (options_.mlperf) mlperf_.emplace(*options_.mlperf, env);
  for (const auto& [set, loss] : evaluated_losses(run.evaluations_file(), options_.resume_iteration, env)) {
    evaluated_.emplace(std::pair(options_.resume_iteration, set), loss);
  }
  const std::string missing = missing_iterations(run.metrics_file(), options_.resume_iteration, env);
  if (!missing.empty()) {
    log_.warning(
        "metrics.jsonl has no line of iteration {}, which the model has been trained for; it goes on "
        "with {}",
        missing, options_.resume_iteration + 1);
  }
}

void TrainingMonitor::begin() {
  if (mlperf_) mlperf_->begin(options_.resume_iteration);
}

void TrainingMonitor::iteration(const IterationRecord& record) {
  report(metrics_failing_, metrics_.write(record), "metrics.jsonl", metrics_);
  if (due(record.iteration, options_.tensorboard_log_interval)) {
    write_events(record.iteration, scalars_of(record));
  }
  if (mlperf_) report_mlperf(mlperf_->iteration(record));
  if (due(record.iteration, options_.log_interval)) log_.info("{}", format_iteration(record));
  if (options_.observer) options_.observer->iteration(record);
  warn(detectors_.iteration(record));
}

bool TrainingMonitor::evaluated(std::int64_t iteration, const std::string& data_set) const {
  return evaluated_.contains({iteration, data_set});
}

bool TrainingMonitor::reached_target(std::int64_t iteration) const {
  const auto found = evaluated_.find({iteration, "validation"});
  return options_.target_eval_loss && found != evaluated_.end() &&
         found->second <= *options_.target_eval_loss;
}

void TrainingMonitor::begin_evaluation(std::int64_t iteration, const std::string& data_set) {
  if (mlperf_ && data_set == "validation") report_mlperf(mlperf_->begin_evaluation(iteration));
}

void TrainingMonitor::evaluation(const EvaluationRecord& record) {
  evaluated_.emplace(std::pair(record.iteration, record.data_set), record.lm_loss);
  report(evaluations_failing_, evaluations_.write(record), "evaluations.jsonl", evaluations_);
  const std::string loss_tag = "lm loss " + record.data_set;
  const std::string perplexity_tag = loss_tag + " ppl";
  write_events(record.iteration,
               std::vector<Scalar>{{loss_tag, record.lm_loss}, {perplexity_tag, std::exp(record.lm_loss)}});
  if (mlperf_ && record.data_set == "validation") {
    report_mlperf(mlperf_->evaluation(record, reached_target(record.iteration)));
  }
  log_.info("{}", format_evaluation(record));
  if (options_.observer) options_.observer->evaluation(record);
  warn(detectors_.evaluation(record));
}

void TrainingMonitor::sample(const SampleRecord& record) {
  last_sample_ = record.iteration;
  report(samples_failing_, samples_->write(record), "samples.jsonl", *samples_);
  log_.info("sample at iteration {}: {}{}", record.iteration, record.prompt, record.text);
  if (options_.observer) options_.observer->sample(record);
}

void TrainingMonitor::end() {
  if (mlperf_) report_mlperf(mlperf_->end());
}

bool TrainingMonitor::sync() {
  const bool metrics = metrics_.sync();
  report(metrics_failing_, metrics, "metrics.jsonl", metrics_);
  const bool evaluations = evaluations_.sync();
  report(evaluations_failing_, evaluations, "evaluations.jsonl", evaluations_);
  const bool samples = !samples_ || samples_->sync();
  if (samples_) report(samples_failing_, samples, "samples.jsonl", *samples_);
  const bool warnings = warnings_.sync();
  report(warnings_failing_, warnings, "warnings.jsonl", warnings_);
  return metrics && evaluations && samples && warnings;
}

std::uint64_t TrainingMonitor::dropped() const {
  return metrics_.dropped() + evaluations_.dropped() + warnings_.dropped() +
         (samples_ ? samples_->dropped() : 0) + (events_ ? events_->dropped() : 0) +
         (mlperf_ ? mlperf_->dropped() : 0) + log_.dropped();
}

void TrainingMonitor::report(bool& failing, bool worked, std::string_view name, MetricsFile& file) {
  report(failing, worked, name, file.last_error());
  if (const std::string trouble = file.take_trouble(); !trouble.empty()) log_.warning("{} {}", name, trouble);
}

void TrainingMonitor::report(bool& failing, bool worked, std::string_view name, const std::string& error) {
  if (failing != worked) return;  // nothing new
  failing = !worked;
  if (failing) {
    log_.warning("{} cannot be written, training goes on: {}", name, error);
  } else {
    log_.info("{} is written again", name);
  }
}

void TrainingMonitor::warn(const std::vector<RunWarning>& found) {
  for (const RunWarning& warning : found) {
    report(warnings_failing_, warnings_.write(warning), "warnings.jsonl", warnings_);
    log_.warning("iteration {}: {} ({})", warning.iteration, warning.text, warning.advice);
  }
}

void TrainingMonitor::report_mlperf(bool worked) {
  report(mlperf_failing_, worked, "the MLPerf log", mlperf_->last_error());
}

void TrainingMonitor::write_events(std::int64_t step, std::span<const Scalar> scalars) {
  if (!events_) return;
  report(events_failing_, events_->write(step, scalars, wall_seconds()), "the TensorBoard file",
         events_->last_error());
}

}  // namespace primus
