#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/system/stop_request.h"
#include "config/trainer_config.h"
#include "device/collectives.h"
#include "lm/train/training_run.h"
#include "turbo/devices/devices.h"

namespace primus {
namespace {

// Returns the mean reward of a step; empty if the stage has no rewards.
std::optional<double> reward_of(const StepResult& result) {
  const auto found = std::ranges::find(result.metrics, "reward", &std::pair<std::string, double>::first);
  return found == result.metrics.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace

TrainingSummary Trainer::Run::execute(const std::atomic<bool>& stop) {
  const double began = monotonic_seconds();
  if (progress.clock) progress.clock->start(began);
  TrainingSummary summary{.first_step = progress.iteration, .last_step = progress.iteration};
  session->set_stop(&stop);
  // Runs the evaluations and samples that an earlier process left due.
  const bool made_up = progress.iteration == 0 || (evaluate_due(summary, stop) && sample_due(stop));
  if (!made_up) interrupt(summary, asked());
  if (progress.iteration >= progress.last_iteration && progress.iteration > 0) {
    summary.unused_changes = progress.rule_changes;
    length.describe(summary);
    return conclude(summary, began);
  }
  if (plan.c.profile && plan.ranks.first() && progress.iteration >= plan.c.profile_step_end) {
    plan.log.warning("nothing is traced: profile_step_end is {}, but the run continues after step {}",
                     plan.c.profile_step_end, progress.iteration);
  }
  watch_machine();
  const bool stopping = run_steps(summary, stop, began);
  finish_step();
  if (trace) {
    drain();
    const comm::Activity busy = plan.ranks.busy("writing a trace");
    trace->finish(progress.iteration);
  }
  if (stopping && progress.iteration < progress.last_iteration) {
    plan.log.info("stop requested after iteration {}", progress.iteration);
    plan.phase("stopping: saving a checkpoint");
    interrupt(summary, asked());
  }
  if (progress.iteration >= progress.last_iteration && !evaluate_due(summary, stop)) {
    plan.log.info("stopped before the last evaluation: the next start runs it");
    interrupt(summary, asked());
  }
  const bool unsaved = progress.iteration > summary.first_step || checkpointer->is_only_in_memory();
  if (unsaved && (summary.interrupted || !plan.c.disable_last_saving)) save();
  {
    const comm::Activity busy = plan.ranks.busy("saving a checkpoint");
    checkpointer->wait();
  }
  checkpointer->log_written();
  if (progress.iteration >= progress.last_iteration && !sample_due(stop)) interrupt(summary, asked());
  if (progress.iteration > progress.first_iteration + 1) log_choices();
  return conclude(summary, began);
}

bool Trainer::Run::evaluate_due(TrainingSummary& summary, const std::atomic<bool>& stop) {
  if (evaluator->belongs_here()) finish_step();
  return evaluator->evaluate_due(summary, stop);
}

void Trainer::Run::save() {
  finish_step();
  if (checks.corruption->is_due(true)) checks.corruption->check();
  checkpointer->save();
}

void Trainer::Run::take_snapshot() {
  const std::int64_t interval = plan.c.snapshot_interval;
  // The end of a run saves a checkpoint.
  if (interval == 0 || progress.iteration % interval != 0 || progress.iteration >= progress.last_iteration)
    return;
  finish_step();
  if (checks.corruption->is_due(true)) checks.corruption->check();
  checkpointer->take_snapshot();
}

bool Trainer::Run::run_steps(TrainingSummary& summary, const std::atomic<bool>& stop, double began) {
  bool stopping = plan.ranks.any(stop);
  while (progress.iteration < progress.last_iteration && !stopping) {
    turn_trace();
    // A later stop request applies to the next step. All ranks get the votes together with this step's loss.
    // Only the first rank votes because of the time, because it records why the run stopped.
    const bool timed_out = !stop && !plan.ranks.single() && plan.ranks.first() && is_out_of_time(began);
    session->step().vote_to_stop(stop || timed_out);
    if (!train_step(stop)) return true;
    if (timed_out && progress.iteration < progress.last_iteration)
      interrupt(summary, "exit_duration_in_mins");
    if (trace) {
      const comm::Activity busy = plan.ranks.busy("writing a trace");
      trace->step_done(progress.iteration);
    }
    stopping = plan.ranks.single() ? stop.load() : progress.result.stop_votes > 0;
    if (progress.iteration == progress.first_iteration + 1) log_choices();
    log_graphs();
    if (checks.corruption->is_due(false)) {
      finish_step();
      checks.corruption->check();
    }
    if (progress.iteration < progress.last_iteration) evaluate_due(summary, stop);
    // Saves before samples are written and before the final evaluation.
    if (progress.iteration % plan.c.save_interval == 0) save();
    take_snapshot();
    if (progress.iteration < progress.last_iteration && !sample_due(stop)) return true;
    const bool late = plan.ranks.single() && is_out_of_time(began);
    if (late || (plan.c.exit_interval && progress.iteration % *plan.c.exit_interval == 0)) {
      const char* const limit = late ? "exit_duration_in_mins" : "exit_interval";
      plan.log.info("stopping after iteration {}: {}", progress.iteration, limit);
      if (progress.iteration < progress.last_iteration) interrupt(summary, limit);
      break;
    }
  }
  return stopping;
}

bool Trainer::Run::is_out_of_time(double began) const {
  return plan.c.exit_duration_in_mins && (monotonic_seconds() - began) / 60 >= *plan.c.exit_duration_in_mins;
}

void Trainer::Run::interrupt(TrainingSummary& summary, const std::string& by) {
  summary.interrupted = true;
  if (!summary.stopped_by.empty()) return;
  summary.stopped_by = by;
  plan.monitor->stop(progress.iteration, by);
}

std::string Trainer::Run::asked() const {
  const std::string by = plan.options.asked_by ? plan.options.asked_by() : "";
  return by.empty() ? "asked to stop" : by;
}

TrainingSummary Trainer::Run::conclude(TrainingSummary summary, double began) {
  plan.monitor->sync();
  summary.last_step = progress.iteration;
  summary.reached_target = evaluator->target_reached();
  summary.last_loss = progress.result.loss;
  summary.last_reward = reward_of(progress.result);
  summary.best_reward = progress.best_reward;
  summary.seconds = monotonic_seconds() - began;
  summary.checkpoint = checkpointer->newest();
  return summary;
}

void Trainer::Run::record_end(const TrainingSummary& summary) const {
  using State = RunEnding::State;
  // A process that was asked for fewer steps than are trained does nothing. It does not complete a run that
  // was stopped or failed.
  if (earlier && progress.iteration > progress.last_iteration &&
      (earlier->state == State::kStopped || earlier->state == State::kFailed)) {
    return plan.monitor->end(*earlier);
  }
  const std::string reason = summary.interrupted      ? summary.stopped_by
                             : summary.reached_target ? "target_eval_loss"
                                                      : "";
  plan.monitor->end({.state = summary.interrupted ? State::kStopped : State::kFinished,
                     .reason = reason,
                     .text = "",
                     .iteration = progress.iteration});
}

void Trainer::Run::record_failure(const std::exception& error) const {
  plan.monitor->end(ending_of(error, progress.iteration));
}

void Trainer::Run::drain() {
  finish_step();
  rank->synchronize();
}

void Trainer::Run::turn_trace() {
  if (!trace || !trace->turns(progress.iteration)) return;
  drain();
  const comm::Activity busy = plan.ranks.busy("writing a trace");
  trace->turn(progress.iteration);
}

// Logs which kernels the device chose and how often, so that a slow fallback shows in the log.
void Trainer::Run::log_choices() {
  const StepGraphs& graphs = session->step().graphs();
  for (const KernelChoice& choice : graphs.choices()) {
    plan.log.info("{} ({} calls up to iteration {})", choice.what, choice.calls, progress.iteration);
  }
  if (graphs.replayed_steps() > 0)
    plan.log.info("graphs: {} steps replayed up to iteration {}", graphs.replayed_steps(),
                  progress.iteration);
}

void Trainer::Run::log_graphs() {
  if (graphs_logged || !session->step().graphs().recorded()) return;
  graphs_logged = true;
  plan.log.info("enable_cuda_graph: iteration {} was recorded, and later ones are replayed",
                progress.iteration);
}

bool Trainer::Run::train_step(const std::atomic<bool>& stop) {
  const double began = monotonic_seconds(), wait_before = loader->wait_seconds();
  report->work().begin_step(wait_before);
  TrainingStep& step = session->step();
  const RunTrace::HostWork whole(trace.get(), "step", progress.iteration + 1);
  // A loss rule needs all batches of the step before the step begins, and a step that is computed twice reads
  // them only once. Otherwise, batches are read while the device works.
  std::vector<data::Batch> batches;
  std::int64_t microbatches = plan.settings.step.microbatches;
  const bool twice = checks.corruption->replays(progress.iteration + 1);
  if (session->rule() || twice) {
    for (std::int64_t i = 0; i < microbatches; ++i) batches.push_back(next_batch(*loader));
  }
  try {
    if (session->rule()) {
      finish_step();
      const comm::Activity busy = plan.ranks.busy("preparing a step");
      const RunTrace::HostWork prepared(trace.get(), "prepare the step");
      microbatches = session->before_step(progress.iteration + 1, batches);
    }
    report->work().begin_passes(loader->wait_seconds());
    report->timeline().begin(progress.iteration + 1);
    step.begin(progress.iteration + 1, microbatches);
    run_passes(stop, batches, microbatches);
    RankWork own = report->work().end_passes(loader->wait_seconds());
    if (plan.options.health) own.symptoms = plan.options.health->symptoms();
    step.report_work(own);
    {
      const RunTrace::HostWork enqueued(trace.get(), "gradients");
      const StepTimeline::Sums sums(report->timeline());
      step.finish_gradients();
    }
    report->work().end_gradients();
    report->timeline().end();
    if (twice) replay_step(stop, batches, microbatches);
  } catch (const StopRequest&) {
    return false;
  }
  update_weights(
      {.iteration = progress.iteration + 1,
       .began = began,
       .data_wait_seconds = loader->wait_seconds() - wait_before,
       .computed = static_cast<double>(microbatches) / static_cast<double>(plan.settings.step.microbatches)});
  return true;
}

void Trainer::Run::run_passes(const std::atomic<bool>& stop, const std::vector<data::Batch>& batches,
                              std::int64_t microbatches) {
  const bool twice = checks.corruption->replays(progress.iteration + 1);
  for (std::int64_t i = 0; i < microbatches; ++i) {
    // A step changes the model only at its end, so the run can leave the step here. Waiting for the end
    // might take minutes.
    if (stop && plan.ranks.single()) throw StopRequest();
    const data::Batch& batch = batches.empty() ? next_batch(*loader) : batches[static_cast<std::size_t>(i)];
    const RunTrace::HostWork enqueued(trace.get(), "microbatch", i);
    if (twice && i + 1 == microbatches) checks.corruption->begin_last_microbatch(progress.iteration + 1);
    session->step().microbatch(i, batch);
  }
}

void Trainer::Run::replay_step(const std::atomic<bool>& stop, const std::vector<data::Batch>& batches,
                               std::int64_t microbatches) {
  finish_step();  // the step before
  const comm::Activity busy = plan.ranks.busy("computing a step again");
  const RunTrace::HostWork again(trace.get(), "compute the step again");
  checks.corruption->keep_bits();
  session->step().begin(progress.iteration + 1, microbatches);
  run_passes(stop, batches, microbatches);
  session->step().finish_gradients();
  checks.corruption->compare_bits(progress.iteration + 1);
}

void Trainer::Run::update_weights(EnqueuedStep step) {
  // Reads the previous step's result now. After a NaN in that step, the update changed nothing. The weights
  // are then still the weights of that step.
  finish_step();
  {
    // Weights and moments may change only after a checkpoint in flight has copied them.
    const comm::Activity busy = plan.ranks.busy("copying the state to be saved");
    const RunTrace::HostWork waited(trace.get(), "wait for the checkpoint's copy");
    checkpointer->wait_copied();
  }
  const double place_in_schedule = length.schedule_position(*evaluator);
  step.learning_rate = plan.schedule.learning_rate_at(place_in_schedule);
  {
    const RunTrace::HostWork enqueued(trace.get(), "update");
    session->step().update(step.iteration, step.learning_rate,
                           plan.schedule.weight_decay_at(place_in_schedule));
  }
  report->work().end_update();
  progress.iteration = step.iteration;
  checks.corruption->updated(step.iteration);
  log_oscillation();
  pending = step;
  // A synchronous device has finished its work already, so waiting costs nothing.
  if (rank->device().synchronous()) finish_step();
  checkpointer->check();
}

void Trainer::Run::record_answers() {
  LossRule* const rule = session->rule();
  if (!rule) return;
  for (GeneratedAnswer& answer : rule->take_answers()) {
    plan.monitor->sample({.iteration = answer.step,
                          .prompt = std::move(answer.prompt),
                          .text = std::move(answer.text),
                          .tokens = answer.tokens,
                          .rewards = std::move(answer.rewards),
                          .finished = answer.finished});
  }
}

void Trainer::Run::log_oscillation() {
  const std::optional<OscillationSettings>& watched = plan.settings.optimizer.oscillation;
  if (!watched || !watched->reports(progress.iteration)) return;
  const Optimizer::Snapped snapped = session->optimizer().snapped();
  plan.log.info(
      "weight_deosc: {:.0f} of {:.0f} weights in fp4 ({:.3f} %) oscillated in the {} steps up to {}",
      snapped.weights, snapped.of, 100 * snapped.weights / std::max(snapped.of, 1.0), watched->period,
      progress.iteration);
}

void Trainer::Run::finish_step() {
  if (!pending) return;
  const EnqueuedStep step = *std::exchange(pending, std::nullopt);
  {
    const RunTrace::HostWork waited(trace.get(), "wait for a step's result");
    progress.result = session->step().result();
  }
  const std::optional<double> reward = reward_of(progress.result);
  if (reward && (!progress.best_reward || *reward > progress.best_reward->reward))
    progress.best_reward = {.reward = *reward, .step = step.iteration};
  report->timeline().write(step.iteration);
  progress.last_rate = step.learning_rate;
  const double ended = monotonic_seconds();
  checks.nan->check(step.iteration);
  const double seconds = report->seconds_of(step, ended);
  // A rank that does not arrive within the time of RankPatience (three step times or more) counts as lost.
  if (!plan.ranks.single()) rank->mesh().set_timeout(times.patience.after_step(seconds));
  report->publish(step, seconds, ended);
  report_findings();
  if (plan.ranks.first() && plan.c.log_completions && step.iteration % plan.c.log_interval == 0)
    record_answers();
}

void Trainer::Run::watch_machine() const {
  if (!plan.options.health) return;
  const DeviceProperties device = rank->device().properties();
  const DeviceCollectives* const library = turbo::collectives_of(rank->device());
  plan.options.health->begin({.device_kind = device.kind,
                              .device = device.ordinal,
                              .bus = library ? library->identity(device.ordinal) : "",
                              .first_on_host = plan.ranks.number_on_host() == 0,
                              .folder = plan.folder.root().string()});
}

void Trainer::Run::report_findings() const {
  if (!plan.options.health) return;
  for (RunWarning& found : plan.options.health->take()) {
    found.iteration = progress.iteration;
    found.rank = plan.ranks.rank();
    plan.monitor->warn(found);
    // The monitor writes only the warnings of rank 0 to the log.
    if (!plan.ranks.first())
      plan.log.warning("iteration {}: {} ({})", found.iteration, found.text, found.advice);
  }
}

bool Trainer::Run::sample_due(const std::atomic<bool>& stop) {
  if (!sampler->is_due()) return true;
  finish_step();
  return sampler->write(stop);
}

const data::Batch& Trainer::Run::next_batch(data::BatchLoader& batches) {
  const comm::Activity busy = plan.ranks.busy("reading data");
  const RunTrace::HostWork read(trace.get(), "read data");
  try {
    return batches.next();
  } catch (const Error&) {
    // The data is broken, not the model, so the progress is saved.
    if (progress.iteration > progress.first_iteration) {
      try {
        save();
        checkpointer->wait();
      } catch (const Error& second) {
        plan.log.error("{}", second.what());
      }
    }
    throw;
  }
}

}  // namespace primus
