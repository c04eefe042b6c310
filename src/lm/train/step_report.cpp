#include "lm/train/step_report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <utility>

#include "config/trainer_config.h"
#include "device/cpu/cpu_device.h"
#include "lm/model/model_config.h"
#include "turbo/devices/devices.h"
#include "turbo/linear/gemm_rate.h"

namespace primus {
namespace {

// For a device with its own memory, returns the memory that all programs use. Otherwise, returns the memory
// that this run has allocated.
DeviceMemory memory_in_use(const Device& device, const DeviceProperties& properties,
                           const engine::MemoryPlan& plan) {
  DeviceMemory memory{.label = properties.kind,
                      .used = static_cast<double>(plan.total()),
                      .total = static_cast<double>(properties.memory)};
  if (!properties.host_memory) memory.used = static_cast<double>(device.memory_use().used);
  return memory;
}

// Adds expert loads, and the mean router losses over layers, under Megatron's names and without their
// coefficients.
void add_routing(const StepResult& result, const MoeConfig& moe, IterationRecord& record) {
  double balance = 0, z = 0;
  for (const LayerRouting& layer : result.routing) {
    record.routing.push_back({.layer = layer.layer, .imbalance = layer.imbalance, .dropped = layer.dropped});
    if (moe.training.balance_loss != 0) record.routing.back().balance_loss = layer.balance_loss;
    balance += layer.balance_loss;
    z += layer.z_loss;
  }
  if (result.routing.empty()) return;
  const auto layers = static_cast<double>(result.routing.size());
  if (moe.training.balance_loss != 0) {
    record.other_losses.emplace_back(moe.training.balance_sequences ? "seq_load_balancing_loss"
                                     : moe.training.balance_step    ? "global_load_balancing_loss"
                                                                    : "load_balancing_loss",
                                     balance / layers);
  }
  if (moe.training.z_loss != 0) record.other_losses.emplace_back("z_loss", z / layers);
}

// Returns the first core's "model name : Intel(R) ...", without the label.
std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(std::min(line.find(':') + 2, line.size()));
  }
  return "";
}

// Returns the device's name in the cache, which several machines may share.
std::string peak_name(const Device& device, DType compute) {
  std::string host(256, '\0');
  if (gethostname(host.data(), host.size() - 1) != 0) host.clear();
  return fmt::format("{} | {} | {} | {}", host.c_str(), processor_name(), device.description(),
                     name_of(compute));
}

}  // namespace

StepReport::StepReport(const RunPlan& plan, const RunProgress& progress, engine::Rank& rank,
                       const engine::MemoryPlan& memory, std::shared_ptr<turbo::WorkMeter> meter)
    : plan_(plan),
      progress_(progress),
      rank_(rank),
      memory_(memory),
      device_properties_(rank.device().properties()),
      work_(rank.device().synchronous(), std::move(meter), rank.compute()),
      timeline_(plan, rank) {
  measure_peak();
  const config::TrainerConfig& c = plan.c;
  meter_.emplace(ThroughputOptions{.train_iters = progress.clock ? 0 : c.train_iters,
                                   .world_size = plan.ranks.size(),
                                   .peak_flops_per_device = peak_ ? peak_->value().value_or(0) : 0,
                                   .avg_skip_iterations = static_cast<int>(c.log_avg_skip_iterations),
                                   .avg_reset_interval = static_cast<int>(c.log_avg_reset_interval)});
}

void StepReport::measure_peak() {
  if (!plan_.ranks.first()) return;
  const DeviceSpec spec = device_spec_of(plan_.e, plan_.ranks.on_host());
  const int threads = spec.threads > 0 ? spec.threads : cpu::available_cores();
  peak_.emplace(peak_name(rank_.device(), plan_.settings.compute), DevicePeak::default_file());
  constexpr turbo::RateTime kTime{.seconds = 0.1, .settled = 0.01};
  if (const auto now = turbo::measure_gemm_peak(rank_.device(), plan_.settings.compute, threads, kTime)) {
    peak_->measured(*now);
  }
  if (!peak_->value())
    plan_.log.info("the machine is busy, so its peak cannot be measured yet: no MFU is shown");
}

double StepReport::seconds_of(const EnqueuedStep& step, double ended) {
  // The host starts a step while the device is still busy with the previous one. The time between two reads
  // is the step's time only if both reads were equally late. After a pause, the two reads are not equally
  // late. The device's own clock is therefore preferred.
  const double looked = ended - std::max(step.began, std::exchange(last_step_ended_, ended));
  return progress_.result.seconds.value_or(looked);
}

void StepReport::publish(const EnqueuedStep& step, double seconds, double ended) {
  IterationRecord record{.iteration = step.iteration,
                         .train_iters = progress_.total_steps(plan_.c),
                         .consumed_samples = step.iteration * plan_.c.global_batch_size,
                         .global_batch_size = plan_.c.global_batch_size,
                         .learning_rate = step.learning_rate,
                         .lm_loss = progress_.result.loss,
                         .grad_norm = progress_.result.gradient_norm,
                         .nan_iterations = progress_.nan_iterations};
  if (progress_.result.mtp_loss) record.other_losses.emplace_back("mtp_loss", *progress_.result.mtp_loss);
  for (const auto& metric : progress_.result.metrics) record.other_losses.push_back(metric);
  add_routing(progress_.result, plan_.model.moe, record);
  record.ranks = progress_.result.ranks;
  record.memory = memory_in_use(rank_.device(), device_properties_, memory_);
  record.throughput = meter_->update(
      step.iteration,
      {.seconds = seconds,
       .data_wait_seconds = step.data_wait_seconds,
       .tokens = step.computed * static_cast<double>(plan_.c.global_batch_size * plan_.c.seq_length),
       .model_flops =
           step.computed * training_flops(plan_.model, plan_.c.global_batch_size, plan_.c.seq_length),
       .exact = rank_.device().synchronous()},
      ended);
  if (progress_.clock) record.throughput.eta = progress_.clock->remaining(ended);
  // The peak is at least the best rate seen.
  if (peak_ && peak_->value()) peak_->seen(meter_->peak());
  plan_.monitor->iteration(record);
}

}  // namespace primus
