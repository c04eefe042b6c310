#include "lm/train/run_length.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/text/counted.h"
#include "config/trainer_config.h"
#include "engine/runtime/rank.h"
#include "lm/data/cyclic_dataset.h"
#include "lm/data/dataset.h"
#include "lm/train/continued_run.h"
#include "lm/train/objectives/keys/reinforcement_keys.h"
#include "lm/train/step/step_time.h"
#include "turbo/devices/devices.h"

namespace primus {

std::int64_t steps_within(double seconds, double step, const config::TrainerConfig& c) {
  // An evaluation runs only forward passes: a third of a step's work.
  const double evaluation = static_cast<double>(c.eval_iters) * step / 3;
  const double each = step + evaluation / static_cast<double>(c.eval_interval);
  const double steps = std::max(std::floor((seconds - evaluation) / each), 1.0);
  const double samples = steps * static_cast<double>(c.global_batch_size);
  if (samples > static_cast<double>(data::kMaxOrderedSamples)) {
    throw unsupported(
        fmt::format("{:.3g} minutes are {:.3g} samples; the limit is 2^32", seconds / 60, samples),
        "train for fewer minutes (train_minutes)");
  }
  return static_cast<std::int64_t>(steps);
}

std::int64_t steps_of_samples(std::int64_t samples, const config::TrainerConfig& c) {
  const std::int64_t turns = steps_of_answers(c), each = c.global_batch_size * turns;
  return (samples / each + (samples % each != 0)) * turns;
}

void RunLength::plan() {
  if (plan_.c.sft_dataset_name) epoch_samples_ = plan_.objective->samples_of_epochs(plan_.data_request(), 1);
  if (!config::length_is_open(plan_.c)) return;
  std::int64_t steps = 0;
  if (plan_.c.train_epochs) {
    const std::int64_t samples =
        plan_.objective->samples_of_epochs(plan_.data_request(), *plan_.c.train_epochs);
    steps = steps_of_samples(samples, plan_.c);
    const bool one = *plan_.c.train_epochs == 1;
    plan_.log.info("{} epoch{} of the training data {} {} sample{}: {} step{}", *plan_.c.train_epochs,
                   one ? "" : "s", one ? "is" : "are", samples, samples == 1 ? "" : "s", steps,
                   steps == 1 ? "" : "s");
  } else {
    plan_time();
    steps = progress_.clock->state().planned;
  }
  config::set_train_iters(plan_.e, steps);
  plan_.schedule = Schedule(plan_.c, starts_from_weights(plan_.c));
}

void RunLength::plan_time() {
  const double total = *plan_.c.train_minutes * 60;
  // A run that resumes keeps its plan, even if the machine is faster or slower now.
  std::optional<ClockState> state;
  if (plan_.ranks.first()) state = continued_clock();
  const bool known = plan_.ranks.from_first(state && state->planned > 0 ? 1 : 0) == 1;
  if (!known) {
    const double step = time_steps();
    const std::int64_t planned = plan_.ranks.from_first(steps_within(total, step, plan_.c));
    if (plan_.ranks.first()) {
      // Estimates the elapsed time of a run that counted only steps.
      const double spent = state ? state->seconds * step : 0;
      state = {.seconds = spent,
               .planned = planned,
               .data_steps = data_steps_of(planned),
               .finished = spent >= total};
    }
    plan_.log.info("planned about {} steps ({} each) for {} minute{}; the clock ends the run", planned,
                   human_duration(step), *plan_.c.train_minutes, *plan_.c.train_minutes == 1 ? "" : "s");
  }
  const ClockState own = state.value_or(ClockState{});
  ClockState shared;
  std::istringstream in(plan_.ranks.from_first(fmt::format(
      "{} {} {} {} {}", own.seconds, own.warm_seconds, own.planned, own.data_steps, own.finished ? 1 : 0)));
  in >> shared.seconds >> shared.warm_seconds >> shared.planned >> shared.data_steps >> shared.finished;
  // whether the user set lr_decay_iters; otherwise the value follows from the length
  const bool by_steps = plan_.c.lr_decay_iters > 0;
  progress_.clock.emplace(
      ClockOptions{.total = total,
                   .warmup_steps = plan_.c.lr_warmup_fraction ? 0 : plan_.c.lr_warmup_iters,
                   .by_steps = by_steps},
      shared);
  plan_.timed_steps = shared.data_steps;
}

std::optional<ClockState> RunLength::continued_clock() const {
  const std::optional<TrainerState> found = continued_state(plan_.e);
  if (!found) return std::nullopt;
  const TrainerState& state = *found;
  const auto changes = changed_settings(state.experiment, experiment_text(plan_.e));
  const bool same = std::ranges::none_of(
      changes, [](const SettingChange& change) { return change.key == "train_minutes"; });
  if (state.clock) {
    ClockState kept = *state.clock;
    if (same) return kept;
    // If the time limit changed, extrapolates from the pace so far. The data order is kept.
    const double share = std::max(kept.seconds, 1e-3) / (*plan_.c.train_minutes * 60);
    kept.planned =
        std::max<std::int64_t>(1, std::llround(std::min(static_cast<double>(state.iteration) / share, 1e12)));
    kept.finished = kept.seconds >= *plan_.c.train_minutes * 60;
    return kept;
  }
  // Older versions and runs with train_iters counted only steps. `seconds` is then this number of steps.
  if (!same || state.train_iters == 0) return ClockState{.seconds = static_cast<double>(state.iteration)};
  const double each = *plan_.c.train_minutes * 60 / static_cast<double>(state.train_iters);
  return ClockState{.seconds = static_cast<double>(state.iteration) * each,
                    .planned = state.train_iters,
                    .data_steps = state.train_iters,
                    .finished = state.iteration >= state.train_iters};
}

double RunLength::time_steps() {
  plan_.phase("timing a few steps");
  constexpr double kLongest = 10, kShareOfTime = 0.02;
  std::unique_ptr<Device> device = turbo::open_device(plan_.choose_device());
  engine::Mesh mesh = plan_.ranks.make_mesh(*device, plan_.shape, orders_sums(plan_.e));
  engine::Rank trial(std::move(device), std::move(mesh));
  SessionSettings settings = plan_.settings;
  settings.filled_microbatches = plan_.objective->filled_microbatches(plan_.data_request(), settings.step,
                                                                      plan_.shape.data(plan_.ranks.size()));
  return measure_step_time(trial, settings, plan_.families,
                           std::min(kLongest, kShareOfTime * *plan_.c.train_minutes * 60),
                           [this](bool more) { return plan_.ranks.from_first(std::int64_t{more}) != 0; });
}

double RunLength::schedule_position(const Evaluator& evaluator) {
  if (!progress_.clock) return static_cast<double>(progress_.iteration);
  std::string turn;
  if (plan_.ranks.first())
    turn = TrainingClock::encode(progress_.clock->turn(
        progress_.iteration, monotonic_seconds(), evaluator.seconds_at_end(progress_.clock->step_seconds())));
  const TrainingClock::Turn taken = TrainingClock::decode(plan_.ranks.from_first(turn));
  progress_.clock->take(taken);
  if (taken.last) progress_.last_iteration = progress_.iteration + 1;
  // Broadcast values are stored until all ranks have synchronized, so the ranks synchronize regularly here.
  constexpr std::int64_t kTogether = 64;
  if (!plan_.ranks.single() && ++turns_ % kTogether == 0) plan_.ranks.any(false);
  return taken.position;
}

void RunLength::describe(TrainingSummary& summary) const {
  const std::int64_t steps = progress_.iteration;
  if (plan_.c.train_epochs) {
    // If the data changed, train_epochs may now be fewer steps than were trained. Names the epochs of these
    // steps.
    const double reached = *plan_.c.train_epochs * static_cast<double>(steps) /
                           static_cast<double>(std::max<std::int64_t>(plan_.c.train_iters, 1));
    summary.length = fmt::format("{} epoch{} of the data {} {} step{}, and {} step{} trained",
                                 *plan_.c.train_epochs, *plan_.c.train_epochs == 1 ? "" : "s",
                                 *plan_.c.train_epochs == 1 ? "is" : "are", plan_.c.train_iters,
                                 plan_.c.train_iters == 1 ? "" : "s", steps, steps == 1 ? " is" : "s are");
    summary.longer = fmt::format("train_epochs=..., above {:.4g}", std::max(reached, *plan_.c.train_epochs));
  } else if (plan_.c.train_tokens) {
    summary.length = fmt::format("train_tokens is {}", *plan_.c.train_tokens);
    summary.longer =
        fmt::format("train_tokens=..., above {}", steps * plan_.c.global_batch_size * plan_.c.seq_length);
  } else if (plan_.c.train_minutes) {
    const double spent = progress_.clock ? progress_.clock->state().seconds / 60 : 0;
    summary.length = fmt::format("train_minutes is {}, and {:.3g} minutes are trained, since the run's start",
                                 *plan_.c.train_minutes, spent);
    summary.longer = fmt::format("train_minutes=..., above {:.3g}", std::max(spent, *plan_.c.train_minutes));
  } else {
    summary.length = fmt::format("train_iters is {}, and {} step{} trained", plan_.c.train_iters, steps,
                                 steps == 1 ? " is" : "s are");
    summary.longer = fmt::format("train_iters=..., above {}", steps);
  }
}

void RunLength::warn_of_few_steps() const {
  if (!plan_.ranks.first()) return;
  constexpr std::int64_t kFewSteps = 20;
  if (progress_.iteration == 0 && progress_.last_iteration == 1 && plan_.schedule.learning_rate(0) == 0) {
    plan_.log.warning(
        "{}", plan_.c.lr == 0
                  ? "lr is 0, so the weights do not change"
                  : "the only step has learning rate 0, because the warm-up starts at 0, so the "
                    "weights do not change. Train longer (--train_iters), or set lr_warmup_iters to 0");
    return;
  }
  if (!starts_from_weights(plan_.c) || progress_.iteration > 0 || progress_.last_iteration >= kFewSteps)
    return;
  plan_.log.warning("only {} step{}: the model hardly learns. Train longer (--epochs, --train_iters){}",
                    progress_.last_iteration, progress_.last_iteration == 1 ? "" : "s",
                    plan_.c.global_batch_size > 1
                        ? fmt::format(", or with a smaller global_batch_size ({})", plan_.c.global_batch_size)
                        : "");
}

std::pair<double, std::int64_t> RunLength::passes_to_warn_of() const {
  // Small models learn few conversations in up to 300 short passes (sft_fit_to_data). In pre-training, more
  // than about 40 passes over a text teach nothing (Muennighoff et al. 2023, Scaling data-constrained
  // language models).
  constexpr double kOfPostTraining = 100, kOfPretraining = 40;
  const config::TrainerConfig& c = plan_.c;
  if (c.sft_dataset_name) return {kOfPostTraining, epoch_samples_};
  if (c.mock_data) return {kOfPretraining, 0};
  // The bound of a text is its number of bytes. A token has fewer bytes than this in almost all texts.
  constexpr double kBytesPerToken = 16;
  double most = 0;
  for (const std::string& path : data::paths_of(c.data_path.empty() ? c.train_data_path : c.data_path))
    most += static_cast<double>(data::bound_tokens(path).maximum);
  const double read = static_cast<double>(progress_.last_iteration) *
                      static_cast<double>(c.global_batch_size) * static_cast<double>(c.seq_length);
  if (read < kOfPretraining * most / kBytesPerToken) return {kOfPretraining, 0};
  try {
    return {kOfPretraining, plan_.objective->samples_of_epochs(plan_.data_request(), 1)};
  } catch (const Error&) {
    return {kOfPretraining, 0};  // a warning must not end a run; training reports the error of its data
  }
}

void RunLength::warn_of_little_data() const {
  if (!plan_.ranks.first() || progress_.iteration > 0) return;
  const auto [many, samples] = passes_to_warn_of();
  if (samples == 0) return;
  const std::int64_t batch = plan_.c.global_batch_size;
  const std::int64_t different = samples / steps_of_answers(plan_.c);
  if (different < batch) {
    plan_.log.warning(
        "global_batch_size is {}, but the training data has only {}: each step repeats samples. Set "
        "global_batch_size to {} or less, or use more data",
        batch, counted(different, "sample"), different);
  }
  const double passes = static_cast<double>(progress_.last_iteration) * static_cast<double>(batch) /
                        static_cast<double>(samples);
  if (passes < many) return;
  plan_.log.warning(
      "{} {} about {:.0f} passes over the training data: the model may memorize it. For fewer passes, set "
      "train_epochs (for example train_epochs=3), or use more data",
      counted(progress_.last_iteration, "step"), progress_.last_iteration == 1 ? "is" : "are", passes);
}

}  // namespace primus
