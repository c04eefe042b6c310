#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "lm/train/training_run.h"

namespace primus {
namespace {

DeviceMemory memory_in_use(const engine::MemoryPlan& plan) {
  const double total =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  return {.label = "cpu", .used = static_cast<double>(plan.total()), .total = total};
}

HostBatch host_batch(const data::Batch& batch) {
  return {batch.tokens, batch.labels, batch.loss_mask, batch.document_starts, batch.position_ids};
}

// Loads of the experts, and the means over layers of the losses that shape the routers, under Megatron's
// names and without their coefficients.
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
    record.other_losses.emplace_back(
        moe.training.balance_sequences ? "seq_load_balancing_loss" : "load_balancing_loss", balance / layers);
  }
  if (moe.training.z_loss != 0) record.other_losses.emplace_back("z_loss", z / layers);
}

}  // namespace

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

TrainingSummary Trainer::Run::execute(const std::atomic<bool>& stop) {
  const double began = monotonic_seconds();
  TrainingSummary summary{.first_step = iteration, .last_step = iteration};
  if (iteration > 0 && !evaluate_due(summary, stop)) summary.interrupted = true;
  if (iteration >= c.train_iters && iteration > 0) {
    monitor->sync();
    summary.last_loss = result.loss;
    summary.seconds = monotonic_seconds() - began;
    summary.checkpoint = newest_checkpoint();
    return summary;
  }
  while (iteration < c.train_iters && !stop) {
    if (!train_step(stop)) break;
    if (iteration < c.train_iters) evaluate_due(summary, stop);
    if (iteration % c.save_interval == 0) save();
    const bool out_of_time =
        c.exit_duration_in_mins && (monotonic_seconds() - began) / 60 >= *c.exit_duration_in_mins;
    if (out_of_time || (c.exit_interval && iteration % *c.exit_interval == 0)) {
      log.info("stopping after iteration {}: {}", iteration,
               out_of_time ? "exit_duration_in_mins" : "exit_interval");
      summary.interrupted = iteration < c.train_iters;
      break;
    }
  }
  if (stop && iteration < c.train_iters) {
    log.info("asked to stop after iteration {}", iteration);
    summary.interrupted = true;
  }
  if (iteration >= c.train_iters && !evaluate_due(summary, stop)) {
    log.info("asked to stop before the last evaluation was done: the next start does it");
    summary.interrupted = true;
  }
  if (iteration > summary.first_step && (summary.interrupted || !c.disable_last_saving)) save();
  writer->wait();
  monitor->sync();

  summary.last_step = iteration;
  summary.last_loss = result.loss;
  summary.seconds = monotonic_seconds() - began;
  summary.checkpoint = newest_checkpoint();
  return summary;
}

bool Trainer::Run::evaluate_due(TrainingSummary& summary, const std::atomic<bool>& stop) {
  if (c.eval_iters == 0) return true;
  const bool last = iteration >= c.train_iters, regular = iteration % c.eval_interval == 0;
  const std::int64_t samples = c.eval_iters * c.global_batch_size;
  if (datasets.valid && (regular || last) && !monitor->evaluated(iteration, "validation")) {
    // Each evaluation has samples of its own; the last one may come between two regular ones.
    const std::int64_t turn = regular ? iteration / c.eval_interval - 1 : c.train_iters / c.eval_interval;
    summary.validation_loss = evaluate(*datasets.valid, "validation", turn * samples, stop);
    if (!summary.validation_loss) return false;
  }
  if (datasets.test && last && !monitor->evaluated(iteration, "test")) {
    summary.test_loss = evaluate(*datasets.test, "test", 0, stop);
    if (!summary.test_loss) return false;
  }
  return true;
}

bool Trainer::Run::train_step(const std::atomic<bool>& stop) {
  step_began = monotonic_seconds();
  wait_before = loader->wait_seconds();
  TrainingStep& step = session->step();
  step.begin(iteration + 1);
  for (std::int64_t i = 0; i < settings.step.microbatches; ++i) {
    // A step of many microbatches may take minutes, and only its end changes the model.
    if (stop && i > 0) return false;
    step.microbatch(i, host_batch(next_batch(*loader)));
  }
  step.finish_gradients();
  result = step.result();
  const bool finite = std::isfinite(result.loss) && std::isfinite(result.gradient_norm);
  if (!finite) ++nan_iterations;
  if (c.check_for_nan_in_loss_and_grad && !finite) {
    const bool loss = !std::isfinite(result.loss);
    std::string first = step.find_non_finite();
    if (first.empty()) first = "the backward pass";
    throw NumericsFault{.iteration = iteration + 1,
                        .quantity = loss ? "lm loss" : "gradient norm",
                        .value = loss ? result.loss : result.gradient_norm,
                        .first_operator = first}
        .to_error();
  }
  // Weights and moments may change only once a checkpoint in flight has copied them.
  writer->wait_copied();
  const double learning_rate = schedule.learning_rate(iteration);
  step.update(iteration + 1, learning_rate, schedule.weight_decay(iteration));
  rank->compute().synchronize();
  ++iteration;

  const double ended = monotonic_seconds();
  IterationRecord record{.iteration = iteration,
                         .train_iters = c.train_iters,
                         .consumed_samples = iteration * c.global_batch_size,
                         .global_batch_size = c.global_batch_size,
                         .learning_rate = learning_rate,
                         .lm_loss = result.loss,
                         .grad_norm = result.gradient_norm,
                         .nan_iterations = nan_iterations};
  if (result.mtp_loss) record.other_losses.emplace_back("mtp_loss", *result.mtp_loss);
  add_routing(result, model.moe, record);
  record.memory = memory_in_use(memory);
  record.throughput = meter->update(iteration,
                                    {.seconds = ended - step_began,
                                     .data_wait_seconds = loader->wait_seconds() - wait_before,
                                     .tokens = static_cast<double>(c.global_batch_size * c.seq_length),
                                     .model_flops = training_flops(model, c.global_batch_size, c.seq_length)},
                                    ended);
  monitor->iteration(record);
  writer->check();
  return true;
}

data::BatchLoaderOptions Trainer::Run::loader_options(std::int64_t first_sample) const {
  constexpr std::int64_t kMostAhead = 64;  // microbatches read ahead
  return {.micro_batch_size = c.micro_batch_size,
          .consumed_samples = first_sample,
          .prefetch = static_cast<int>(std::min(settings.step.microbatches + 1, kMostAhead)),
          .reset_position_ids = c.reset_position_ids,
          .reset_attention_mask = c.reset_attention_mask,
          .eod = tokenizer->special_ids().eod};
}

const data::Batch& Trainer::Run::next_batch(data::BatchLoader& batches) {
  try {
    return batches.next();
  } catch (const Error&) {
    // Something is wrong with the data, not with what was learned from it.
    if (iteration > first_iteration) {
      try {
        save();
        writer->wait();
      } catch (const Error& second) {
        log.error("{}", second.what());
      }
    }
    throw;
  }
}

std::optional<double> Trainer::Run::evaluate(const data::Dataset& dataset, const char* name,
                                             std::int64_t first_sample, const std::atomic<bool>& stop) {
  const double began = monotonic_seconds();
  data::BatchLoader batches(dataset, loader_options(first_sample));
  TrainingStep& step = session->step();
  step.begin_evaluation();
  const std::int64_t count = c.eval_iters * settings.step.microbatches;
  for (std::int64_t i = 0; i < count; ++i) {
    if (stop) return std::nullopt;
    step.evaluate(host_batch(next_batch(batches)));
  }
  const double loss = step.evaluation_loss();
  monitor->evaluation({.iteration = iteration,
                       .data_set = name,
                       .lm_loss = loss,
                       .tokens = count * c.micro_batch_size * c.seq_length,
                       .seconds = monotonic_seconds() - began});
  return loss;
}

}  // namespace primus
