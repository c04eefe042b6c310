// Before the first step: how many there are, whether the memory is there, and how long it will take.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "lm/train/step_time.h"
#include "lm/train/training_run.h"
#include "turbo/devices/devices.h"
#include "turbo/linear/gemm_rate.h"

namespace primus {
namespace {

// Of large products, what a whole step usually reaches (docs/performance.md).
constexpr double kUsualShare = 0.5;

std::optional<std::int64_t> recorded_microbatch(const TrainerState& state) {
  const std::string size = recorded_setting(state, "micro_batch_size");
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), number);
  if (error != std::errc() || end != size.data() + size.size() || number < 1) return std::nullopt;
  return number;
}

// The micro_batch_size of the run that this one goes on from; nothing where it begins anew.
std::optional<std::int64_t> continued_microbatch(const config::Experiment& e) {
  const std::optional<TrainerState> state = continued_state(e);
  return state ? recorded_microbatch(*state) : std::nullopt;
}

// Steps of `step` seconds that fit `seconds`, evaluations included. These are forward passes: a third of a
// step's work.
std::int64_t steps_within(double seconds, double step, const config::TrainerConfig& c) {
  const double evaluation = static_cast<double>(c.eval_iters) * step / 3;
  const double each = step + evaluation / static_cast<double>(c.eval_interval);
  const double steps = std::max(std::floor((seconds - evaluation) / each), 1.0);
  const double samples = steps * static_cast<double>(c.global_batch_size);
  if (samples > static_cast<double>(data::kMostOrderedSamples)) {
    throw unsupported(
        fmt::format("{:.3g} minutes are {:.3g} samples; 2^32 are the limit", seconds / 60, samples),
        "train for fewer minutes (train_minutes)");
  }
  return static_cast<std::int64_t>(steps);
}

// "model name : Intel(R) ..." of the first core.
std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(std::min(line.find(':') + 2, line.size()));
  }
  return "";
}

// The device among all that write into one cache.
std::string peak_name(const Device& device, DType compute) {
  std::string host(256, '\0');
  if (gethostname(host.data(), host.size() - 1) != 0) host.clear();
  return fmt::format("{} | {} | {} | {}", host.c_str(), processor_name(), device.description(),
                     name_of(compute));
}

}  // namespace

std::optional<TrainerState> continued_state(const config::Experiment& e) {
  const config::TrainerConfig& c = e.trainer;
  std::optional<CheckpointReader> checkpoint;
  if (c.auto_continue_train)
    checkpoint = find_resume_point(checkpoint_root_of(e), Validation::kStructure).reader;
  if (!checkpoint && c.load && !c.finetune) {
    const Path load = loaded_root(*c.load);
    if (Env::posix().status(load / Manifest::kFileName)) {
      checkpoint = CheckpointReader::open(load, Validation::kStructure);
    } else if (!Env::posix().status(load / "config.json")) {
      checkpoint = find_resume_point(load, Validation::kStructure).reader;
    }
  }
  return checkpoint ? std::optional(read_trainer_state(*checkpoint)) : std::nullopt;
}

data::CyclicOptions Trainer::Run::choose_cyclic_order() {
  data::CyclicOptions order{.micro_batch_size = c.micro_batch_size,
                            .dp_size = shape.data(ranks.size()),
                            .sharded = c.data_sharding};
  if (!objective->depends_on_ranks(c)) return order;
  const data::CyclicOptions own = order;
  if (const auto state = ranks.first() ? continued_state(e) : std::nullopt) {
    if (state->cyclic_ranks > 0) {
      order.micro_batch_size = state->cyclic_micro_batch_size;
      order.dp_size = state->cyclic_ranks;
    } else if (const auto recorded = recorded_microbatch(*state)) {
      order.micro_batch_size =
          *recorded;  // an older checkpoint, which does not say how many ranks there were
    }
  }
  order.micro_batch_size = ranks.from_first(order.micro_batch_size);
  order.dp_size = ranks.from_first(order.dp_size);
  if (order.micro_batch_size != own.micro_batch_size || order.dp_size != own.dp_size) {
    log.info(
        "the data keep the order of {} data-parallel ranks with microbatches of {} (dataloader_type: cyclic)",
        order.dp_size, order.micro_batch_size);
  }
  return order;
}

void Trainer::Run::plan_length() {
  if (!config::length_is_open(c)) return;
  std::int64_t steps = 0;
  if (c.train_epochs) {
    const std::int64_t samples = objective->samples_of_epochs(data_request(), *c.train_epochs);
    steps = samples / c.global_batch_size + (samples % c.global_batch_size != 0);
    log.info("{} epochs of the training data are {} samples: {} steps", *c.train_epochs, samples, steps);
  } else {
    plan_time();
    steps = clock->state().planned;
  }
  config::set_train_iters(e, steps);
  schedule = Schedule(c, starts_from_weights(c));
}

void Trainer::Run::plan_time() {
  const double total = *c.train_minutes * 60;
  // A run that goes on keeps its plan, whatever the machine does today.
  std::optional<ClockState> state;
  if (ranks.first()) state = continued_clock();
  const bool known = ranks.from_first(state && state->planned > 0 ? 1 : 0) == 1;
  if (!known) {
    const double step = time_steps();
    const std::int64_t planned = ranks.from_first(steps_within(total, step, c));
    if (ranks.first()) {
      // Steps of a run that counted none of its time.
      const double spent = state ? state->seconds * step : 0;
      state = {.seconds = spent, .planned = planned, .data_steps = data_steps_of(planned)};
    }
    log.info("planned about {} steps ({} each) for {} minutes; the clock ends the run", planned,
             human_duration(step), *c.train_minutes);
  }
  const ClockState own = state.value_or(ClockState{});
  ClockState shared;
  std::istringstream in(ranks.from_first(fmt::format("{} {} {} {} {}", own.seconds, own.warm_seconds,
                                                     own.planned, own.data_steps, own.finished ? 1 : 0)));
  in >> shared.seconds >> shared.warm_seconds >> shared.planned >> shared.data_steps >> shared.finished;
  const bool by_steps = c.lr_decay_iters > 0;  // somebody chose them: they follow from the length else
  clock.emplace(
      ClockOptions{
          .total = total, .warmup_steps = c.lr_warmup_fraction ? 0 : c.lr_warmup_iters, .by_steps = by_steps},
      shared);
  timed_steps = shared.data_steps;
}

std::optional<ClockState> Trainer::Run::continued_clock() const {
  const std::optional<TrainerState> found = continued_state(e);
  if (!found) return std::nullopt;
  const TrainerState& state = *found;
  const auto changes = changed_settings(state.experiment, experiment_text(e));
  const bool same = std::ranges::none_of(
      changes, [](const SettingChange& change) { return change.key == "train_minutes"; });
  if (state.clock) {
    ClockState kept = *state.clock;
    if (same) return kept;
    // For another time: at the pace so far. The data keep their order.
    const double share = std::max(kept.seconds, 1e-3) / (*c.train_minutes * 60);
    kept.planned =
        std::max<std::int64_t>(1, std::llround(std::min(static_cast<double>(state.iteration) / share, 1e12)));
    kept.finished = false;
    return kept;
  }
  // Of a version that planned steps alone, or of a run with train_iters: time is counted in its steps.
  if (!same || state.train_iters == 0) return ClockState{.seconds = static_cast<double>(state.iteration)};
  const double each = *c.train_minutes * 60 / static_cast<double>(state.train_iters);
  return ClockState{.seconds = static_cast<double>(state.iteration) * each,
                    .planned = state.train_iters,
                    .data_steps = state.train_iters,
                    .finished = state.iteration >= state.train_iters};
}

double Trainer::Run::time_steps() {
  phase("timing a few steps");
  constexpr double kLongest = 10, kShareOfTime = 0.02;
  std::unique_ptr<Device> device = turbo::open_device(choose_device());
  engine::Mesh mesh = ranks.make_mesh(*device, shape);
  engine::Rank trial(std::move(device), std::move(mesh));
  return measure_step_time(trial, settings, families,
                           std::min(kLongest, kShareOfTime * *c.train_minutes * 60),
                           [this](bool more) { return ranks.from_first(std::int64_t{more}) != 0; });
}

double Trainer::Run::schedule_position() {
  if (!clock) return static_cast<double>(iteration);
  std::string turn;
  if (ranks.first())
    turn = TrainingClock::encode(
        clock->turn(iteration, monotonic_seconds(), evaluator->seconds_at_end(clock->step_seconds())));
  const TrainingClock::Turn taken = TrainingClock::decode(ranks.from_first(turn));
  clock->take(taken);
  if (taken.last) last_iteration = iteration + 1;
  // What rank 0 tells the others is kept until all answer together.
  constexpr std::int64_t kTogether = 64;
  if (!ranks.alone() && ++clock_turns % kTogether == 0) ranks.any(false);
  return taken.position;
}

void Trainer::Run::warn_of_few_steps() const {
  constexpr std::int64_t kFewSteps = 20;
  if (iteration == 0 && last_iteration == 1 && schedule.learning_rate(0) == 0) {
    log.warning(
        "the only step has learning rate 0, because lr is warmed up from 0: nothing is learned. Train longer "
        "(--train_iters), or set lr_warmup_iters to 0");
    return;
  }
  if (!starts_from_weights(c) || iteration > 0 || last_iteration >= kFewSteps) return;
  log.warning(
      "only {} step{}: the model hardly learns. Train longer (--epochs, --train_iters), or with a smaller "
      "global_batch_size ({})",
      last_iteration, last_iteration == 1 ? "" : "s", c.global_batch_size);
}

void Trainer::Run::check_memory(const StepMeasurement& measured) {
  MemorySupply supply = supply_of(rank->device());
  if (!supply.shared) supply.device -= group_bytes(rank->device(), rank->mesh());
  supply.host /= ranks.on_host();
  if (supply.shared) supply.device /= ranks.on_host();
  const MemoryFit fit = fit_memory(e, model, families, measured, supply, ranks.size(), ranks.rank());
  if (fit.fits) return;
  if (options.ignore_memory) {
    log.warning("{}: started all the same (--force)", describe_lack(fit));
    return;
  }
  throw invalid(describe_lack(fit), describe_changes(fit) + "; --force starts it all the same");
}

void Trainer::Run::check_disk(const StepMeasurement& measured) const {
  const std::string what =
      lack_of_disk(c, folder.root(), checkpoint_bytes(measured, settings, !c.no_save_optim));
  if (what.empty()) return;
  if (options.ignore_memory) {
    log.warning("{}: started all the same (--force)", what);
    return;
  }
  throw invalid(what, "make room, or name another place (workspace); --force starts it all the same");
}

void Trainer::Run::measure_peak() {
  if (!ranks.first()) return;
  const DeviceSpec spec = device_spec_of(e, ranks.on_host());
  const int threads = spec.threads > 0 ? spec.threads : cpu::available_cores();
  peak.emplace(peak_name(rank->device(), settings.compute), DevicePeak::default_file());
  constexpr turbo::RateTime kTime{.seconds = 0.1, .settled = 0.01};
  if (const auto now = turbo::measure_gemm_peak(rank->device(), settings.compute, threads, kTime)) {
    peak->measured(*now);
  }
  if (!peak->value()) log.info("the machine is busy, and its peak is not known yet: no MFU is shown");
}

namespace {

// What a rank has: of the hardware that the plan is for, else of this machine's device.
MemorySupply supply_of_plan(const config::Experiment& e, int world, int on_host) {
  const turbo::PlannedDevice planned = planning_device(e, on_host);
  if (!e.hardware) return supply_of(*planned.device);
  return supply_of(*e.hardware, planned_memory(*e.hardware, *planned.device, measuring_mesh(e, world, 0),
                                               planned.by_cpu_kernels));
}

}  // namespace

Trainer::Fit Trainer::fit(const FitMemory& memory, int world, int on_host) {
  config::Experiment e = with_loaded_model(
      make_objective(experiment_.trainer)->plan(experiment_, families_, world).experiment, families_);
  const bool there = !e.trainer.vocab_size || !missing_tokenizer(e.trainer);
  const std::unique_ptr<const Tokenizer> tokenizer = there ? tokenizer_of(e) : nullptr;
  const ModelConfig model = model_of(e, families_, tokenizer.get());
  Fit fit;
  fit.supply = supply_of_plan(e, world, on_host);
  MemorySupply& supply = fit.supply;
  supply.host /= on_host;
  if (supply.shared) supply.device /= on_host;
  if (memory.share > 0) {
    const auto whole = static_cast<double>(supply.shared ? supply.total / on_host : supply.total);
    supply.device = static_cast<std::int64_t>(memory.share * whole);
  }
  if (memory.bytes > 0) {
    supply.device = memory.bytes;
    supply.host = 0;  // nothing else decides, so that the choice is the same on every machine
  }
  supply.chosen = memory.share > 0 || memory.bytes > 0;
  if (supply.device == 0) {
    throw invalid("--fit: the memory of the device is not known here", "give it: --fit-memory 80GiB");
  }
  // Other microbatches add up in another order, and cyclic data come in another one.
  const std::optional<std::int64_t> kept = continued_microbatch(e);
  if (kept) e.trainer.micro_batch_size = *kept;
  fit.choice = choose_fit(e, model, families_, supply, world, kept.has_value());
  return fit;
}

namespace {

// The stages of a run in which every expert gets its equal share of the tokens. Empty where memory is not
// reserved for more, or where the settings have no such run.
std::vector<StepMeasurement> balanced_stages(config::Experiment e, const FamilyRegistry& families,
                                             const Tokenizer* tokenizer, int world, int on_host) {
  std::vector<StepMeasurement> stages;
  const engine::MeshShape mesh = mesh_shape_of(e, world);
  if (mesh.expert * mesh.expert_tensor == 1 || e.trainer.moe_expert_capacity_factor) return stages;
  e.trainer.moe_expert_capacity_factor = 1;
  try {
    const SessionSettings settings = session_settings_of(e, model_of(e, families, tokenizer, nullptr), world);
    for (int stage = 0; stage < mesh.pipeline; ++stage) {
      engine::Rank rank(planning_device(e, on_host).device,
                        measuring_mesh(e, world, stage * mesh.stage_ranks(world)));
      stages.push_back(measure_session(rank, settings, families));
    }
  } catch (const Error&) {  // of settings that capacities exclude
    stages.clear();
  }
  return stages;
}

// The time that a step takes on hardware that is not here, and what is to be said of it.
void plan_time(TrainingForecast& f, DType compute) {
  HardwarePlan& plan = *f.hardware;
  const std::vector<StepMeasurement>& stages = f.balanced.empty() ? f.stages : f.balanced;
  plan.time = planned_time(*plan.profile, stages, f.mesh, f.world, compute, f.bubble);
  plan.doubts = doubts_about(*plan.profile, stages);
  f.seconds_per_step = plan.time.slowest;
}

// The time that a step takes here: measured where a part of it is short, else by the rate of products.
void time_here(TrainingForecast& f, const DeviceSpec& device, const SessionSettings& settings,
               const FamilyRegistry& families) {
  f.matmul_flops_per_second = turbo::measure_gemm_rate(*turbo::open_device(device), settings.compute,
                                                       {.seconds = 0.2, .settled = 0.01});
  // A part of a step that is short is run; of a long one the products tell. So they do of several ranks,
  // whose time is that of the stage with the most work: what they wait for each other is not known here.
  constexpr double kLongestPart = 2, kSeconds = 0.5;
  double most = 0;
  for (const StepMeasurement& stage : f.stages) most = std::max(most, stage.kernels.total_flops());
  f.seconds_per_step = most / (kUsualShare * f.matmul_flops_per_second) / (1 - f.bubble);
  f.timed = f.world == 1 && f.memory.fits &&
            f.seconds_per_step / static_cast<double>(settings.step.microbatches) < kLongestPart;
  if (!f.timed) return;
  engine::Rank trial(turbo::open_device(device));
  f.seconds_per_step = measure_step_time(trial, settings, families, kSeconds);
}

}  // namespace

TrainingForecast Trainer::forecast(int world, int on_host) {
  std::vector<std::string> notes = notes_;
  const std::unique_ptr<Objective> objective = make_objective(experiment_.trainer);
  const ObjectivePlan plan = objective->plan(experiment_, families_, world);
  for (const std::string& fact : plan.facts) log_.info("{}", fact);
  config::Experiment e = with_loaded_model(plan.experiment, families_, &notes);
  const config::TrainerConfig& c = e.trainer;
  // A forecast needs no tokenizer file where the experiment says how many tokens there are.
  const bool there = !c.vocab_size || !missing_tokenizer(c);
  const std::unique_ptr<const Tokenizer> tokenizer = there ? tokenizer_of(e) : nullptr;
  const ModelConfig model = model_of(e, families_, tokenizer.get(), &notes);
  for (const std::string& note : notes) log_.warning("{}", note);
  objective->check_samples(e);
  const SessionSettings settings = session_settings_of(e, model, world);
  notes.clear();
  TrainingForecast f{
      .experiment = plan.experiment, .model = model, .world = world, .mesh = mesh_shape_of(e, world)};
  MemorySupply supply;
  if (e.hardware) f.hardware = HardwarePlan{.profile = e.hardware};
  for (int stage = 0; stage < f.mesh.pipeline; ++stage) {
    turbo::PlannedDevice planned = planning_device(e, on_host, stage == 0 ? &notes : nullptr);
    const bool by_cpu_kernels = planned.by_cpu_kernels;
    engine::Rank rank(std::move(planned.device), measuring_mesh(e, world, stage * f.mesh.stage_ranks(world)));
    f.stages.push_back(measure_session(rank, settings, families_));
    if (f.step().memory.total() < f.stages.back().memory.total()) f.neediest = f.stages.size() - 1;
    const std::int64_t groups = group_bytes(rank.device(), rank.mesh());
    f.program_bytes = std::max(f.program_bytes, context_bytes(rank.device()) + groups);
    if (f.hardware) {
      const PlannedMemory memory = planned_memory(*e.hardware, rank.device(), rank.mesh(), by_cpu_kernels);
      // The rank with the most groups decides for all.
      if (memory.reserved() >= f.hardware->memory.reserved()) f.hardware->memory = memory;
      f.hardware->by_cpu_kernels = by_cpu_kernels;
      supply = supply_of(*e.hardware, f.hardware->memory);
    } else {
      supply = supply_of(rank.device());
      if (!supply.shared) supply.device -= groups;
    }
  }
  for (const std::string& note : notes) log_.warning("{}", note);
  warn_without_graphs(log_, f.step().why_not_recorded);
  supply.host /= on_host;
  if (supply.shared) {
    supply.device /= on_host;
    f.program_bytes = program_bytes(f.mesh, world, on_host);
  }
  if (f.mesh.pipeline > 1) {
    f.bubble =
        engine::simulate(engine::make_schedule(settings.step.pipeline.schedule, f.mesh.pipeline,
                                               settings.step.pipeline.chunks, settings.step.microbatches))
            .bubble;
  }
  f.model_flops_per_step = training_flops(model, c.global_batch_size, c.seq_length);
  f.tokens_per_step = c.global_batch_size * c.seq_length;
  f.checkpoint_bytes = checkpoint_bytes(f.step(), settings, !c.no_save_optim);
  f.memory = fit_memory(e, model, families_, f.step(), supply, world,
                        static_cast<int>(f.neediest) * f.mesh.stage_ranks(world));
  f.balanced = balanced_stages(e, families_, tokenizer.get(), world, on_host);
  f.steps = c.train_iters;
  if (tokenizer && c.train_epochs && length_is_open(c)) {
    const auto samples =
        objective->planned_samples({.experiment = e, .tokenizer = *tokenizer}, *c.train_epochs);
    if (samples) f.steps = *samples / c.global_batch_size + (*samples % c.global_batch_size != 0);
  }
  if (f.hardware) {
    plan_time(f, settings.compute);
  } else {
    const DeviceSpec device = turbo::choose_device(device_spec_of(e, on_host));
    try {
      time_here(f, device, settings, families_);
    } catch (const Error& error) {
      if (device.kind == "cpu") throw;
      log_.warning("planned without the device, so the time is not known: {}", error.what());
      return f;
    }
  }
  if (c.train_minutes && length_is_open(c))
    f.steps = steps_within(*c.train_minutes * 60, f.seconds_per_step, c);
  return f;
}

}  // namespace primus
