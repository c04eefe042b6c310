#include "backends/log_lines.h"

#include <algorithm>
#include <cmath>

namespace primus::backends {

std::string without_colors(std::string_view line) {
  std::string text;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b' && i + 1 < line.size() && line[i + 1] == '[') {
      i += 2;
      while (i < line.size() && !(line[i] >= '@' && line[i] <= '~')) ++i;
    } else {
      text += line[i];
    }
  }
  return text;
}

std::optional<IterationRecord> LogReader::iteration(std::string_view line) {
  std::optional<IterationRecord> record = backend_.iteration(without_colors(line));
  if (!record || record->iteration <= last_) return std::nullopt;
  separate(*record);
  complete(*record);
  return record;
}

// If the second line has the means over the first two steps, replaces these means by the values of the second
// step.
void LogReader::separate(IterationRecord& record) {
  if (!run_.second_line_is_mean) return;
  if (!first_) {
    first_ = record;
    return;
  }
  if (last_ != first_->iteration || record.iteration != last_ + 1) return;
  const auto rest = [](double mean, double first) { return 2 * mean - first; };
  // If the first step was skipped, the mean does not include it.
  if (!std::isnan(first_->lm_loss)) record.lm_loss = rest(record.lm_loss, first_->lm_loss);
  for (auto& [name, value] : record.other_losses) {
    for (const auto& [of_first, first] : first_->other_losses) {
      if (name == of_first) value = rest(value, first);
    }
  }
  record.skipped_iterations -= std::min(record.skipped_iterations, first_->skipped_iterations);
  record.nan_iterations -= std::min(record.nan_iterations, first_->nan_iterations);
  Speed &now = record.throughput.now, &then = first_->throughput.now;
  const double seconds = rest(now.seconds_per_iteration, then.seconds_per_iteration);
  if (seconds <= 0) return;
  now.flops_per_second *= now.seconds_per_iteration / seconds;
  now.seconds_per_iteration = seconds;
}

void LogReader::complete(IterationRecord& record) {
  if (record.train_iters == 0) record.train_iters = run_.train_iters;
  if (record.global_batch_size == 0) record.global_batch_size = run_.global_batch_size;
  if (record.consumed_samples == 0) record.consumed_samples = record.iteration * record.global_batch_size;
  Speed& now = record.throughput.now;
  const double tokens = static_cast<double>(record.global_batch_size * run_.tokens_per_sample);
  const double ranks = std::max(run_.ranks, 1);
  if (now.tokens_per_second == 0 && now.seconds_per_iteration > 0) {
    now.tokens_per_second = tokens / now.seconds_per_iteration / ranks;
  } else if (now.seconds_per_iteration == 0 && now.tokens_per_second > 0) {
    now.seconds_per_iteration = tokens / now.tokens_per_second / ranks;
  }
  const std::int64_t steps = last_ > 0 ? record.iteration - last_ : 1;
  elapsed_ += now.seconds_per_iteration * static_cast<double>(steps);
  record.throughput.elapsed_seconds = elapsed_;
  if (record.train_iters >= record.iteration) {
    record.throughput.eta =
        now.seconds_per_iteration * static_cast<double>(record.train_iters - record.iteration);
  }
  last_ = record.iteration;
}

std::optional<EvaluationRecord> LogReader::evaluation(std::string_view line) const {
  return backend_.evaluation(without_colors(line), last_);
}

}  // namespace primus::backends
