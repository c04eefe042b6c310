#include "backends/log_lines.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace primus::backends {
namespace {

// The text behind `label`, without spaces in front; empty where the line has no such label.
std::string_view behind(std::string_view line, std::string_view label) {
  const std::size_t at = line.find(label);
  if (at == std::string_view::npos) return {};
  std::string_view rest = line.substr(at + label.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  return rest;
}

// The number that `text` begins with; thousands may be set off by commas. "nan" and "inf" are numbers.
std::optional<double> number(std::string_view text) {
  std::string digits;
  for (const char c : text) {
    const bool part = (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '+' || (c >= 'a' && c <= 'z') ||
                      (c >= 'A' && c <= 'Z');
    if (c == ',') continue;
    if (!part || digits.size() > 40) break;
    digits += c;
  }
  double value = 0;
  const char* const end = digits.data() + digits.size();
  const char* const begin = digits.starts_with('+') ? digits.data() + 1 : digits.data();
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || stop == begin) return std::nullopt;
  return value;
}

std::optional<double> number_behind(std::string_view line, std::string_view label) {
  return number(behind(line, label));
}

std::optional<std::int64_t> count(const std::optional<double>& value) {
  constexpr double kMost = 9007199254740992.0;
  if (!value || !(*value >= 0) || *value > kMost) return std::nullopt;
  return static_cast<std::int64_t>(*value);
}

// "a/b" is an instantaneous value and a mean.
std::optional<double> second_number(std::string_view text) {
  const std::size_t slash = text.find('/'), end = text.find('|');
  if (slash == std::string_view::npos || slash > end) return std::nullopt;
  return number(text.substr(slash + 1));
}

}  // namespace

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
  std::optional<IterationRecord> record;
  const std::string plain = without_colors(line);
  if (framework_ == "megatron") record = megatron(plain);
  if (framework_ == "torchtitan") record = torchtitan(plain);
  if (framework_ == "maxtext") record = maxtext(plain);
  if (!record || record->iteration <= last_) return std::nullopt;
  separate(*record);
  complete(*record);
  return record;
}

// Takes the first step out of the second line.
void LogReader::separate(IterationRecord& record) {
  if (!run_.second_line_is_mean) return;
  if (!first_) {
    first_ = record;
    return;
  }
  if (last_ != first_->iteration || record.iteration != last_ + 1) return;
  const auto rest = [](double mean, double first) { return 2 * mean - first; };
  // A first step that was skipped has no part in the mean.
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

// iteration 10/ 100 | consumed samples: 80 | elapsed time per iteration (ms): 812.3 | ... | lm loss: 1.0E+01
// | ...
std::optional<IterationRecord> LogReader::megatron(std::string_view line) const {
  const auto iteration = count(number_behind(line, "iteration "));
  const auto loss = number_behind(line, "| lm loss:");
  if (!iteration || line.find("| consumed samples:") == std::string_view::npos) return std::nullopt;
  IterationRecord record;
  record.iteration = *iteration;
  const std::string_view counter = behind(line, "iteration ");
  record.train_iters = count(second_number(counter)).value_or(0);
  if (const std::size_t slash = counter.find('/'); slash != std::string_view::npos) {
    record.train_iters = count(number(behind(counter, "/"))).value_or(0);
  }
  record.consumed_samples = count(number_behind(line, "| consumed samples:")).value_or(0);
  record.global_batch_size = count(number_behind(line, "| global batch size:")).value_or(0);
  record.learning_rate = number_behind(line, "| learning rate:").value_or(0);
  // Steps that were skipped have no loss.
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

// step: 20  loss:  8.0488  grad_norm:  1.4  memory: 48.87GiB(51.44%)  tps: 4,376  tflops: 25.1  mfu: 8.0%
std::optional<IterationRecord> LogReader::torchtitan(std::string_view line) const {
  const auto iteration = count(number_behind(line, "step:"));
  const auto loss = number_behind(line, " loss:");
  if (!iteration || *iteration == 0 || !loss || line.find("tps:") == std::string_view::npos ||
      line.find("validate") != std::string_view::npos) {
    return std::nullopt;
  }
  IterationRecord record;
  record.iteration = *iteration;
  record.lm_loss = *loss;
  record.grad_norm = number_behind(line, "grad_norm:");
  record.learning_rate = number_behind(line, " lr:").value_or(0);
  Speed& now = record.throughput.now;
  now.tokens_per_second = number_behind(line, "tps:").value_or(0);
  now.flops_per_second = number_behind(line, "tflops:").value_or(0) * 1e12;
  if (const auto mfu = number_behind(line, "mfu:")) now.mfu = *mfu / 100;
  const std::string_view memory = behind(line, "memory:");
  if (const auto gib = number(memory)) {
    constexpr double kGiB = 1073741824.0;
    const std::size_t bracket = memory.find('(');
    const auto share = bracket < 16 ? number(memory.substr(bracket + 1)) : std::nullopt;
    record.memory = DeviceMemory{"gpu", *gib * kGiB, share && *share > 0 ? *gib * kGiB / (*share / 100) : 0};
  }
  return record;
}

// completed step: 4, seconds: 0.512, TFLOP/s/device: 210.1, Tokens/s/device: 8000.0, total_weights: 65536,
// loss: 9.1
std::optional<IterationRecord> LogReader::maxtext(std::string_view line) const {
  const auto step = count(number_behind(line, "completed step:"));
  if (!step) return std::nullopt;
  IterationRecord record;
  record.iteration = *step + 1;  // it counts from 0
  // Behind lm_loss is the loss without what mixtures of experts add; dense models may log 0 there.
  const auto lm_loss = number_behind(line, ", lm_loss:");
  record.lm_loss =
      lm_loss && *lm_loss != 0 ? *lm_loss : number_behind(line, ", loss:").value_or(std::nan(""));
  record.learning_rate = number_behind(line, "learning_rate:").value_or(0);
  Speed& now = record.throughput.now;
  now.seconds_per_iteration = number_behind(line, ", seconds:").value_or(0);
  now.flops_per_second = number_behind(line, "TFLOP/s/device:").value_or(0) * 1e12;
  now.tokens_per_second = number_behind(line, "Tokens/s/device:").value_or(0);
  return record;
}

// validation loss at iteration 10 on validation set | lm loss value: 1.0E+01 | lm loss PPL: 2.2E+04 |
std::optional<EvaluationRecord> LogReader::evaluation(std::string_view line) const {
  const std::string plain = without_colors(line);
  EvaluationRecord record;
  record.iteration = last_;
  std::optional<double> loss;
  if (framework_ == "megatron") {
    if (plain.find("validation loss at") == std::string::npos) return std::nullopt;
    loss = number_behind(plain, "| lm loss value:");
    record.iteration = count(number_behind(plain, "at iteration ")).value_or(last_);
    if (plain.find("test set") != std::string::npos) record.data_set = "test";
  } else if (framework_ == "torchtitan") {
    if (plain.find("validate step:") == std::string::npos) return std::nullopt;
    loss = number_behind(plain, " loss:");
    record.iteration = count(number_behind(plain, "validate step:")).value_or(last_);
  } else {
    if (plain.find("eval metrics after step:") == std::string::npos) return std::nullopt;
    loss = number_behind(plain, "loss=");
    record.iteration = count(number_behind(plain, "after step:")).value_or(last_ - 1) + 1;
  }
  if (!loss) return std::nullopt;
  record.lm_loss = *loss;
  return record;
}

}  // namespace primus::backends
