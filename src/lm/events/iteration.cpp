#include "lm/events/iteration.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/terminal/terminal.h"

namespace primus {

std::string describe_symptoms(std::uint32_t symptoms) {
  static constexpr std::pair<Symptom, const char*> kTexts[] = {
      {Symptom::kCpuLimit, "a control group limits the CPU time"},
      {Symptom::kCpuBusy,
       "its threads wait for cores (other programs use them, or there are more threads than cores)"},
      {Symptom::kSwapping, "memory is swapped"},
      {Symptom::kSlowDisk, "programs wait for disks"},
      {Symptom::kSlowClock, "the CPU's clock is low"},
      {Symptom::kGpuThrottled, "a GPU is throttled"},
      {Symptom::kGpuLink, "a GPU's PCIe link is narrow"},
      {Symptom::kPortErrors, "a network port reports errors"}};
  std::vector<std::string> found;
  for (const auto& [symptom, text] : kTexts) {
    if ((symptoms & static_cast<std::uint32_t>(symptom)) != 0) found.emplace_back(text);
  }
  return fmt::format("{}", fmt::join(found, ", "));
}
namespace {

constexpr double kTera = 1e12;

void append_speed(std::string& line, const Throughput& throughput) {
  const Speed& now = throughput.now;
  const double milliseconds = now.seconds_per_iteration * 1e3;
  const double teraflops = now.flops_per_second / kTera;
  auto out = std::back_inserter(line);
  if (!throughput.average) {
    fmt::format_to(out, " | elapsed time per iteration (ms): {:.1f}", milliseconds);
    fmt::format_to(out, " | throughput per GPU (TFLOP/s/GPU): {:.1f}", teraflops);
    fmt::format_to(out, " | tokens per GPU (tokens/s/GPU): {:.1f}", now.tokens_per_second);
    return;
  }
  const Speed& average = *throughput.average;
  fmt::format_to(out, " | elapsed time per iteration (ms): {:.1f}/{:.1f}", milliseconds,
                 average.seconds_per_iteration * 1e3);
  fmt::format_to(out, " | compute per GPU (TFLOP/s/GPU): {:.1f} (avg {:.1f})", teraflops,
                 average.flops_per_second / kTera);
  fmt::format_to(out, " | tokens/s/GPU inst/harmonic mean: {:.1f}/{:.1f}", now.tokens_per_second,
                 average.tokens_per_second);
}

void append_memory(std::string& line, const DeviceMemory& memory) {
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  const double ratio = memory.total > 0 ? memory.used / memory.total * 100.0 : 0.0;
  fmt::format_to(std::back_inserter(line),
                 " | {} mem usage/free/total/usage_ratio: {:.2f}GB/{:.2f}GB/{:.2f}GB/{:.2f}%", memory.label,
                 memory.used / kGiB, (memory.total - memory.used) / kGiB, memory.total / kGiB, ratio);
}

}  // namespace

RoutingSummary summarise(const std::vector<ExpertLoads>& routing) {
  RoutingSummary summary{.worst = routing.front()};
  for (const ExpertLoads& layer : routing) {
    summary.imbalance += layer.imbalance / static_cast<double>(routing.size());
    summary.dropped += layer.dropped / static_cast<double>(routing.size());
    if (layer.imbalance > summary.worst.imbalance) summary.worst = layer;
  }
  return summary;
}

std::string format_iteration(const IterationRecord& record) {
  std::string line = fmt::format(" iteration {:8}/{:8} | consumed samples: {:12}", record.iteration,
                                 record.train_iters, record.consumed_samples);
  auto out = std::back_inserter(line);
  append_speed(line, record.throughput);
  fmt::format_to(out, " | learning rate: {:.6E} | global batch size: {:5} | lm loss: {:.6E}",
                 record.learning_rate, record.global_batch_size, drop_nan_sign(record.lm_loss));
  for (const auto& [name, value] : record.other_losses)
    fmt::format_to(out, " | {}: {:.6E}", name, drop_nan_sign(value));
  fmt::format_to(out, " | loss scale: {:.1f}", record.loss_scale);
  if (record.grad_norm) fmt::format_to(out, " | grad norm: {:.3f}", drop_nan_sign(*record.grad_norm));
  if (record.num_zeros) fmt::format_to(out, " | num zeros: {}", *record.num_zeros);
  if (!record.routing.empty()) {
    const RoutingSummary routing = summarise(record.routing);
    fmt::format_to(out, " | expert imbalance: {:.2f} (layer {}: {:.2f})", routing.imbalance,
                   routing.worst.layer, routing.worst.imbalance);
    if (routing.dropped > 0) fmt::format_to(out, " | dropped: {:.2f}%", routing.dropped * 100.0);
  }
  fmt::format_to(out, " | number of skipped iterations: {:3} | number of nan iterations: {:3}",
                 record.skipped_iterations, record.nan_iterations);
  // Host memory is omitted, because the planned amount was logged at the start.
  if (record.memory && record.memory->label != "cpu") append_memory(line, *record.memory);

  // Uses the average if available, because the waiting time of a single iteration is noisy.
  const Speed& speed = record.throughput.average.value_or(record.throughput.now);
  if (speed.mfu) fmt::format_to(out, " | MFU: {:.1f}%", *speed.mfu * 100.0);
  if (record.throughput.eta) fmt::format_to(out, " | ETA: {}", human_duration(*record.throughput.eta));
  if (speed.data_wait_share >= 0.0005)
    fmt::format_to(out, " | data wait: {:.1f}%", speed.data_wait_share * 100.0);
  return line;
}

std::string format_evaluation(const EvaluationRecord& record) {
  // Megatron limits the exponent, so that the perplexity stays finite.
  constexpr double kLargestExponent = 20.0;
  std::string line = fmt::format(" {} loss at iteration {} | lm loss value: {:.6E} | lm loss PPL: {:.6E}",
                                 record.data_set, record.iteration, drop_nan_sign(record.lm_loss),
                                 drop_nan_sign(std::exp(std::min(record.lm_loss, kLargestExponent))));
  if (record.bits_per_byte)
    line += fmt::format(" | bits per byte: {:.4f}", drop_nan_sign(*record.bits_per_byte));
  return line;
}

Error NumericsFault::to_error() const {
  std::string what = fmt::format("{} is {} at iteration {}", quantity, drop_nan_sign(value), iteration);
  if (!first_operator.empty())
    what += fmt::format("; the first operator with such a result is {}", first_operator);
  return {ErrorKind::kNumerics, std::move(what), hint()};
}

std::string NumericsFault::hint() const {
  switch (weights) {
    case Weights::kDamaged:
      return fmt::format(
          "the loaded weights are damaged{}: load another copy of them; 'primus model export MODEL NEW' "
          "names tensors with nan",
          damaged.empty() ? "" : fmt::format(" ({} contains nan or inf)", damaged));
    case Weights::kUntrained:
      return "the run has made no update yet, so lr is not the cause: check the data of this iteration, and "
             "settings that scale the model's values, such as init_method_std";
    case Weights::kTrained:
      break;
  }
  return clips_gradients
             ? "lower lr or clip_grad, lengthen lr_warmup_iters, or check the data of this iteration"
             : "lower lr, set clip_grad=1.0 (it is 0: gradients are not clipped), lengthen "
               "lr_warmup_iters, or check the data of this iteration";
}

}  // namespace primus
