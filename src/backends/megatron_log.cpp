#include "backends/megatron_log.h"

#include <cmath>
#include <string>

#include "backends/log_text.h"

namespace primus::backends {
namespace {

// Parses "a/b", where a is the last value and b a mean, and returns the mean.
std::optional<double> second_number(std::string_view text) {
  const std::size_t slash = text.find('/'), end = text.find('|');
  if (slash == std::string_view::npos || slash > end) return std::nullopt;
  return number(text.substr(slash + 1));
}

}  // namespace

// iteration 10/ 100 | consumed samples: 80 | elapsed time per iteration (ms): 812.3 | ... | lm loss: 1.0E+01
// | ...
std::optional<IterationRecord> megatron_iteration(std::string_view line) {
  const auto iteration = count(number_behind(line, "iteration "));
  const auto loss = number_behind(line, "| lm loss:");
  if (!iteration || line.find("| consumed samples:") == std::string_view::npos) return std::nullopt;
  IterationRecord record;
  record.iteration = *iteration;
  const std::string_view counter = text_after(line, "iteration ");
  record.train_iters = count(second_number(counter)).value_or(0);
  if (const std::size_t slash = counter.find('/'); slash != std::string_view::npos) {
    record.train_iters = count(number(text_after(counter, "/"))).value_or(0);
  }
  record.consumed_samples = count(number_behind(line, "| consumed samples:")).value_or(0);
  record.global_batch_size = count(number_behind(line, "| global batch size:")).value_or(0);
  record.learning_rate = number_behind(line, "| learning rate:").value_or(0);
  // A skipped step has no loss in the log, and NaN in the record.
  record.lm_loss = loss.value_or(std::nan(""));
  record.loss_scale = number_behind(line, "| loss scale:").value_or(1);
  record.grad_norm = number_behind(line, "| grad norm:");
  record.num_zeros = count(number_behind(line, "| num zeros:"));
  record.skipped_iterations = count(number_behind(line, "| number of skipped iterations:")).value_or(0);
  record.nan_iterations = count(number_behind(line, "| number of nan iterations:")).value_or(0);
  for (const char* name : {"load_balancing_loss", "seq_load_balancing_loss", "global_load_balancing_loss",
                           "z_loss", "mtp_1 loss"}) {
    if (const auto value = number_behind(line, std::string("| ") + name + ":"))
      record.other_losses.emplace_back(name, *value);
  }
  record.throughput.now.seconds_per_iteration =
      number_behind(line, "| elapsed time per iteration (ms):").value_or(0) / 1e3;
  for (const char* name : {"| throughput per GPU (TFLOP/s/GPU):", "| compute per GPU (TFLOP/s/GPU):"}) {
    if (const auto value = number_behind(line, name)) record.throughput.now.flops_per_second = *value * 1e12;
  }
  return record;
}

// validation loss at iteration 10 on validation set | lm loss value: 1.0E+01 | lm loss PPL: 2.2E+04 |
std::optional<EvaluationRecord> megatron_evaluation(std::string_view line, std::int64_t last) {
  const auto loss = number_behind(line, "| lm loss value:");
  if (line.find("validation loss at") == std::string_view::npos || !loss) return std::nullopt;
  EvaluationRecord record;
  record.iteration = count(number_behind(line, "at iteration ")).value_or(last);
  record.lm_loss = *loss;
  if (line.find("test set") != std::string_view::npos) record.data_set = "test";
  return record;
}

}  // namespace primus::backends
