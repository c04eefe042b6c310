#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>

#include "base/error.h"
#include "lm/train/training_run.h"

namespace primus {
namespace {

// A device with memory of its own says what is used of it, by all programs. Of the host's, it is what this
// run took.
DeviceMemory memory_in_use(const Device& device, const DeviceProperties& properties,
                           const engine::MemoryPlan& plan) {
  DeviceMemory memory{.label = properties.kind,
                      .used = static_cast<double>(plan.total()),
                      .total = static_cast<double>(properties.memory)};
  if (!properties.host_memory) memory.used = static_cast<double>(device.memory_use().used);
  return memory;
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
    record.other_losses.emplace_back(moe.training.balance_sequences ? "seq_load_balancing_loss"
                                     : moe.training.balance_step    ? "global_load_balancing_loss"
                                                                    : "load_balancing_loss",
                                     balance / layers);
  }
  if (moe.training.z_loss != 0) record.other_losses.emplace_back("z_loss", z / layers);
}

}  // namespace

TrainingSummary Trainer::Run::execute(const std::atomic<bool>& stop) {
  const double began = monotonic_seconds();
  if (clock) clock->start(began);
  TrainingSummary summary{.first_step = iteration, .last_step = iteration};
  // Ranks that train together cannot leave a step one by one.
  if (ranks.alone()) session->step().set_stop(&stop);
  // Evaluations and samples that an earlier process did not reach.
  const bool made_up =
      iteration == 0 || (evaluate_due(summary, stop) && (!must_sample() || write_sample(stop)));
  if (!made_up) interrupt(summary, asked());
  if (iteration >= last_iteration && iteration > 0) {
    summary.unused_changes = rule_changes;
    return conclude(summary, began);
  }
  if (c.profile && ranks.first() && iteration >= c.profile_step_end) {
    log.warning("nothing is traced: profile_step_end is {}, and the run goes on after step {}",
                c.profile_step_end, iteration);
  }
  const bool stopping = run_steps(summary, stop, began);
  finish_step();
  if (trace) {
    drain();
    const comm::Activity busy = ranks.busy("writing a trace");
    trace->finish(iteration);
  }
  if (stopping && iteration < last_iteration) {
    log.info("asked to stop after iteration {}", iteration);
    phase("stopping: saving what was learned");
    interrupt(summary, stop ? asked() : is_out_of_time(began) ? "exit_duration_in_mins" : "asked to stop");
  }
  if (iteration >= last_iteration && !evaluate_due(summary, stop)) {
    log.info("asked to stop before the last evaluation was done: the next start does it");
    interrupt(summary, asked());
  }
  if (iteration > summary.first_step && (summary.interrupted || !c.disable_last_saving)) save();
  {
    const comm::Activity busy = ranks.busy("saving a checkpoint");
    checkpointer->wait();
  }
  checkpointer->log_written();
  if (iteration >= last_iteration && must_sample() && !write_sample(stop)) interrupt(summary, asked());
  if (iteration > first_iteration + 1) log_choices();
  return conclude(summary, began);
}

bool Trainer::Run::evaluate_due(TrainingSummary& summary, const std::atomic<bool>& stop) {
  if (evaluator->belongs_here()) finish_step();
  return evaluator->evaluate_due(summary, stop);
}

void Trainer::Run::save() {
  finish_step();
  checkpointer->save();
}

bool Trainer::Run::run_steps(TrainingSummary& summary, const std::atomic<bool>& stop, double began) {
  bool stopping = ranks.any(stop);
  while (iteration < last_iteration && !stopping) {
    turn_trace();
    // A request that comes from here on is for the next step: all ranks hear of it with this step's loss.
    session->step().vote_to_stop(stop || (!ranks.alone() && is_out_of_time(began)));
    if (!train_step(stop)) return true;
    if (trace) {
      const comm::Activity busy = ranks.busy("writing a trace");
      trace->step_done(iteration);
    }
    stopping = ranks.alone() ? stop.load() : result.stop_votes > 0;
    if (iteration == first_iteration + 1) log_choices();
    log_graphs();
    if (iteration < last_iteration) evaluate_due(summary, stop);
    // Saves before it evaluates or samples.
    if (iteration % c.save_interval == 0) save();
    if (iteration < last_iteration && must_sample() && !write_sample(stop)) return true;
    const bool late = ranks.alone() && is_out_of_time(began);
    if (late || (c.exit_interval && iteration % *c.exit_interval == 0)) {
      const char* const limit = late ? "exit_duration_in_mins" : "exit_interval";
      log.info("stopping after iteration {}: {}", iteration, limit);
      if (iteration < last_iteration) interrupt(summary, limit);
      break;
    }
  }
  return stopping;
}

bool Trainer::Run::is_out_of_time(double began) const {
  return c.exit_duration_in_mins && (monotonic_seconds() - began) / 60 >= *c.exit_duration_in_mins;
}

void Trainer::Run::interrupt(TrainingSummary& summary, const std::string& by) {
  summary.interrupted = true;
  if (!summary.stopped_by.empty()) return;
  summary.stopped_by = by;
  monitor->stop(iteration, by);
}

std::string Trainer::Run::asked() const {
  const std::string by = options.asked_by ? options.asked_by() : "";
  return by.empty() ? "asked to stop" : by;
}

TrainingSummary Trainer::Run::conclude(TrainingSummary summary, double began) {
  monitor->sync();
  summary.last_step = iteration;
  summary.reached_target = evaluator->target_reached();
  summary.last_loss = result.loss;
  summary.seconds = monotonic_seconds() - began;
  summary.checkpoint = checkpointer->newest();
  return summary;
}

void Trainer::Run::record_end(const TrainingSummary& summary) const {
  using State = RunEnding::State;
  const std::string reason = summary.interrupted      ? summary.stopped_by
                             : summary.reached_target ? "target_eval_loss"
                                                      : "";
  monitor->end({.state = summary.interrupted ? State::kStopped : State::kFinished,
                .reason = reason,
                .text = "",
                .iteration = iteration});
}

void Trainer::Run::record_failure(const std::exception& error) const {
  monitor->end(ending_of(error, iteration));
}

void Trainer::Run::drain() {
  finish_step();
  rank->synchronize();
}

void Trainer::Run::turn_trace() {
  if (!trace || !trace->turns(iteration)) return;
  drain();
  const comm::Activity busy = ranks.busy("writing a trace");
  trace->turn(iteration);
}

// What a device's kernels chose, and how often: a fallback that costs speed is found in the log.
void Trainer::Run::log_choices() {
  const StepGraphs& graphs = session->step().graphs();
  for (const KernelChoice& choice : graphs.choices()) {
    log.info("{} ({} calls until iteration {})", choice.what, choice.calls, iteration);
  }
  if (graphs.replayed_steps() > 0)
    log.info("graphs: {} steps replayed until iteration {}", graphs.replayed_steps(), iteration);
}

void Trainer::Run::log_graphs() {
  if (graphs_logged || !session->step().graphs().recorded()) return;
  graphs_logged = true;
  log.info("enable_cuda_graph: iteration {} was recorded, and later ones are replayed", iteration);
}

bool Trainer::Run::train_step(const std::atomic<bool>& stop) {
  const double began = monotonic_seconds(), wait_before = loader->wait_seconds();
  TrainingStep& step = session->step();
  const RunTrace::HostWork whole(trace.get(), "step", iteration + 1);
  // A rule sees the whole step before it begins; without one, batches are read while the device works.
  std::vector<data::Batch> batches;
  if (session->rule()) {
    for (std::int64_t i = 0; i < settings.step.microbatches; ++i) batches.push_back(next_batch(*loader));
    finish_step();
    session->before_step(iteration + 1, batches);
  }
  step.begin(iteration + 1);
  try {
    for (std::int64_t i = 0; i < settings.step.microbatches; ++i) {
      // A step may take minutes, and only its end changes the model.
      if (stop && ranks.alone()) return false;
      const data::Batch& batch = session->rule() ? batches[static_cast<std::size_t>(i)] : next_batch(*loader);
      const RunTrace::HostWork enqueued(trace.get(), "microbatch", i);
      step.microbatch(i, batch);
    }
  } catch (const StopRequest&) {
    return false;
  }
  {
    const RunTrace::HostWork enqueued(trace.get(), "gradients");
    step.finish_gradients();
  }
  // The step before this one. Now, because the weights are still those of a step that was bad: its update
  // changed nothing.
  finish_step();
  {
    // Weights and moments may change only once a checkpoint in flight has copied them.
    const comm::Activity busy = ranks.busy("copying what is to be saved");
    const RunTrace::HostWork waited(trace.get(), "wait for the checkpoint's copy");
    checkpointer->wait_copied();
  }
  const double place_in_schedule = schedule_position();
  const double learning_rate = schedule.learning_rate_at(place_in_schedule);
  {
    const RunTrace::HostWork enqueued(trace.get(), "update");
    step.update(iteration + 1, learning_rate, schedule.weight_decay_at(place_in_schedule));
  }
  ++iteration;
  log_oscillation();
  pending = {.iteration = iteration,
             .learning_rate = learning_rate,
             .began = began,
             .data_wait_seconds = loader->wait_seconds() - wait_before};
  // A device that has done its work when asked has nothing to do meanwhile.
  if (rank->device().synchronous()) finish_step();
  checkpointer->check();
  return true;
}

void Trainer::Run::log_oscillation() {
  const std::optional<OscillationSettings>& watched = settings.optimizer.oscillation;
  if (!watched || !watched->reports(iteration)) return;
  const Optimizer::Snapped snapped = session->optimizer().snapped();
  log.info("weight_deosc: {:.0f} of {:.0f} weights in fp4 ({:.3f} %) oscillated in the {} steps up to {}",
           snapped.weights, snapped.of, 100 * snapped.weights / std::max(snapped.of, 1.0), watched->period,
           iteration);
}

void Trainer::Run::finish_step() {
  if (!pending) return;
  const Pending step = *std::exchange(pending, std::nullopt);
  {
    const RunTrace::HostWork waited(trace.get(), "wait for a step's result");
    result = session->step().result();
  }
  last_rate = step.learning_rate;
  const double ended = monotonic_seconds();
  const bool finite = std::isfinite(result.loss) && std::isfinite(result.gradient_norm);
  if (!finite) ++nan_iterations;
  if (c.check_for_nan_in_loss_and_grad && !finite) {
    const bool loss = !std::isfinite(result.loss);
    std::string first = session->step().find_non_finite();
    if (first.empty()) first = "the backward pass";
    const NumericsFault fault{.iteration = step.iteration,
                              .quantity = loss ? "lm loss" : "gradient norm",
                              .value = loss ? result.loss : result.gradient_norm,
                              .first_operator = first,
                              .clips_gradients = c.clip_grad > 0};
    monitor->fault(fault);
    throw fault.to_error();
  }
  // The host begins a step while the device is busy with the one before. Between two looks of the host lies
  // a step only where both looks were equally late, and the one before a pause is not: a device's own clock
  // is better.
  const double looked = ended - std::max(step.began, std::exchange(last_step_ended, ended));
  const double seconds = result.seconds.value_or(looked);
  watch_ranks(seconds);
  IterationRecord record{.iteration = step.iteration,
                         .train_iters = total_steps(c),
                         .consumed_samples = step.iteration * c.global_batch_size,
                         .global_batch_size = c.global_batch_size,
                         .learning_rate = step.learning_rate,
                         .lm_loss = result.loss,
                         .grad_norm = result.gradient_norm,
                         .nan_iterations = nan_iterations};
  if (result.mtp_loss) record.other_losses.emplace_back("mtp_loss", *result.mtp_loss);
  for (const auto& metric : result.metrics) record.other_losses.push_back(metric);
  add_routing(result, model.moe, record);
  record.memory = memory_in_use(rank->device(), device_properties, memory);
  record.throughput = meter->update(step.iteration,
                                    {.seconds = seconds,
                                     .data_wait_seconds = step.data_wait_seconds,
                                     .tokens = static_cast<double>(c.global_batch_size * c.seq_length),
                                     .model_flops = training_flops(model, c.global_batch_size, c.seq_length),
                                     .exact = rank->device().synchronous()},
                                    ended);
  if (clock) record.throughput.eta = clock->remaining(ended);
  // What was reached is a lower bound of what can be.
  if (peak && peak->value()) peak->seen(meter->peak());
  monitor->iteration(record);
}

void Trainer::Run::watch_ranks(double step_seconds) {
  if (!ranks.alone()) rank->mesh().set_timeout(patience.after_step(step_seconds));
}

const data::Batch& Trainer::Run::next_batch(data::BatchLoader& batches) {
  const comm::Activity busy = ranks.busy("reading data");
  const RunTrace::HostWork read(trace.get(), "read data");
  try {
    return batches.next();
  } catch (const Error&) {
    // Something is wrong with the data, not with what was learned from it.
    if (iteration > first_iteration) {
      try {
        save();
        checkpointer->wait();
      } catch (const Error& second) {
        log.error("{}", second.what());
      }
    }
    throw;
  }
}

bool Trainer::Run::must_sample() {
  if (!c.sample_interval || (iteration % *c.sample_interval != 0 && iteration < last_iteration)) return false;
  return ranks.from_first(!monitor->sampled(iteration) ? 1 : 0) == 1;
}

bool Trainer::Run::write_sample(const std::atomic<bool>& stop) {
  finish_step();
  const ReaderSettings& decoding = *session->decoding();
  if (!decoding.parallel) session->parallel().wait_for_all_values();
  const bool together = BatchReader::reads_together(session->rank(), decoding);
  const bool cut = (ranks.first() || together) && !write_own_sample(stop, together);
  // The others wait here, and not in a collective that has a short timeout.
  if (!ranks.any(cut)) return true;
  log.info("asked to stop before the sample at iteration {} was written: the next start writes it",
           iteration);
  return false;
}

GenerateSettings Trainer::Run::sample_settings() const {
  const SpecialIds& special = tokenizer->special_ids();
  GenerateSettings sampled{.sampling = {.temperature = 0.7, .top_k = 40},
                           .max_tokens = c.sample_tokens,
                           .vocab = tokenizer->vocab_size()};
  for (const auto& id : {special.eod, special.eos}) {
    if (id) sampled.stop_ids.push_back(*id);
  }
  for (const std::int64_t id : model.eos_ids) sampled.stop_ids.push_back(static_cast<std::int32_t>(id));
  return sampled;
}

bool Trainer::Run::write_own_sample(const std::atomic<bool>& stop, bool together) {
  phase("writing a sample");
  // All ranks write what the first one chooses, even where their own logits were rounded otherwise, and end
  // when it does.
  bool cut = false;
  const auto tell = [&](std::span<std::int32_t> chosen) {
    std::string bytes(reinterpret_cast<const char*>(chosen.data()), chosen.size_bytes());
    bytes.push_back(stop ? 1 : 0);
    bytes = ranks.from_first(bytes);
    std::memcpy(chosen.data(), bytes.data(), chosen.size_bytes());
    cut = bytes.back() != 0;
  };
  const auto decoder = together ? session->make_decoder(tell) : session->make_decoder();
  const std::span<const std::int32_t> prompt =
      fit_prompt(sample_prompt, decoder->capacity(), c.sample_tokens);
  SampleRecord record{.iteration = iteration, .prompt = tokenizer->decode(prompt), .text = {}};
  StreamDecoder stream(*tokenizer);
  const double began = monotonic_seconds();
  const Generation generation = generate(*decoder, prompt, sample_settings(), [&](std::int32_t id) {
    record.text += stream.push(id);
    if (!together) cut = stop;
    return !cut;
  });
  phase("");
  if (cut) return false;  // a part is no sample
  if (!ranks.first()) return true;
  record.text += stream.finish();
  record.tokens = static_cast<std::int64_t>(generation.ids.size());
  record.seconds = monotonic_seconds() - began;
  monitor->sample(record);
  return true;
}

}  // namespace primus
