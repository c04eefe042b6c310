// Implements Trainer::forecast() and Trainer::fit(), which plan a run before it has a folder.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "comm/overlap.h"
#include "config/trainer_config.h"
#include "lm/train/continued_run.h"
#include "lm/train/forecast/fit_choice.h"
#include "lm/train/run_length.h"
#include "lm/train/run_trace.h"
#include "lm/train/settings/training_settings.h"
#include "lm/train/step/step_time.h"
#include "lm/train/training_run.h"
#include "turbo/devices/devices.h"
#include "turbo/linear/gemm_rate.h"

namespace primus {
namespace {

// Fraction of the rate of large matrix products that a complete step usually reaches (docs/performance.md).
constexpr double kUsualShare = 0.5;

}  // namespace

Trainer::Fit Trainer::fit(const FitMemory& memory, int world, int on_host) {
  config::Experiment e = with_loaded_model(
      make_objective(experiment_.trainer)->plan(experiment_, families_, world).experiment, families_);
  const bool there = !e.trainer->vocab_size || !missing_tokenizer(e.trainer) || kept_tokenizer(e);
  const std::unique_ptr<const Tokenizer> tokenizer = there ? tokenizer_of(e) : nullptr;
  const ModelConfig model = model_of(e, families_, tokenizer.get());
  assume_expert_hosts(e, model.moe, world, on_host);
  Fit fit;
  fit.supply = planning_supply(e, world, on_host);
  MemorySupply& supply = fit.supply;
  if (e.hardware && memory.bytes > supply.total) {
    throw invalid(
        fmt::format("--fit-memory is {}, but the {} has {}", human_bytes(static_cast<double>(memory.bytes)),
                    supply.hardware, human_bytes(static_cast<double>(supply.total))),
        "give at most the memory of the device, for example --fit-memory 90%");
  }
  supply.host /= on_host;
  if (supply.shared) supply.device /= on_host;
  if (memory.share > 0) {
    const auto whole = static_cast<double>(supply.shared ? supply.total / on_host : supply.total);
    supply.device = static_cast<std::int64_t>(memory.share * whole);
  }
  if (memory.bytes > 0) {
    supply.device = memory.bytes;
    supply.host = 0;  // ignores this machine's host memory, so that the choice is the same on every machine
  }
  supply.chosen = memory.share > 0 || memory.bytes > 0;
  if (supply.device == 0) {
    throw invalid("--fit: the memory of the device is unknown", "set it: --fit-memory 80GiB");
  }
  // A resumed run keeps its microbatch size, because another size changes the order of sums and of cyclic
  // data.
  const std::optional<std::int64_t> kept = continued_microbatch(e);
  if (kept) e.trainer->micro_batch_size = *kept;
  fit.choice = choose_fit(e, model, families_, supply, world, kept.has_value());
  return fit;
}

namespace {

// Returns the stages of a run with tokens balanced over all experts. Returns an empty list if memory is
// already reserved for balanced tokens, or if the settings exclude such a run.
std::vector<StepMeasurement> balanced_stages(config::Experiment e, const MoeConfig& moe,
                                             const FamilyRegistry& families, const Tokenizer* tokenizer,
                                             int world, int on_host) {
  std::vector<StepMeasurement> stages;
  const engine::MeshShape mesh = mesh_shape_of(e, world);
  if (mesh.expert * mesh.expert_tensor == 1 || e.trainer->moe_expert_capacity_factor) return stages;
  if (moe.training.forced == turbo::RouterRule::Forced::kEven && moe.hash_layers == 0) return stages;
  e.trainer->moe_expert_capacity_factor = 1;
  e.trainer->moe_expert_rounds = 1;  // an expert may get all rows of its capacity in each round
  try {
    const SessionSettings settings = session_settings_of(e, model_of(e, families, tokenizer, nullptr), world);
    for (int stage = 0; stage < mesh.pipeline; ++stage) {
      engine::Rank rank(planning_device(e, on_host).device,
                        measuring_mesh(e, world, stage * mesh.stage_ranks(world)));
      stages.push_back(measure_session(rank, settings, families));
    }
  } catch (const Error&) {  // thrown for settings that exclude capacities
    stages.clear();
  }
  return stages;
}

// Estimates the time of a step on hardware that may be absent, and adds notes on what makes the estimate
// uncertain.
void plan_time(TrainingForecast& f, DType compute) {
  HardwarePlan& plan = *f.hardware;
  const std::vector<StepMeasurement>& stages = f.expected_stages();
  plan.time = planned_time(*plan.profile, stages, f.mesh, f.world, compute, f.bubble);
  plan.doubts = doubts_about(*plan.profile, stages);
  f.seconds_per_step = plan.time.slowest;
}

// Estimates the time of a step on this machine. Measures a part of the step if the run has one rank and its
// step is short. Otherwise computes the time from the step's FLOPs and the measured rate of matrix products.
void time_here(TrainingForecast& f, const DeviceSpec& device, const SessionSettings& settings,
               const FamilyRegistry& families) {
  f.matmul_flops_per_second = turbo::measure_gemm_rate(*turbo::open_device(device), settings.compute,
                                                       {.seconds = 0.2, .settled = 0.01});
  // The estimate uses the FLOPs of the stage with the most work. The time in which ranks wait for each other
  // is not included.
  constexpr double kLongestPart = 2, kSeconds = 0.5;
  double maximum = 0;
  for (const StepMeasurement& stage : f.expected_stages())
    maximum = std::max(maximum, stage.kernels.total_flops());
  f.seconds_per_step = maximum / (kUsualShare * f.matmul_flops_per_second) / (1 - f.bubble);
  f.timed = f.world == 1 && f.memory.fits &&
            f.seconds_per_step / static_cast<double>(f.step().microbatches) < kLongestPart;
  if (!f.timed) return;
  engine::Rank trial(turbo::open_device(device));
  f.seconds_per_step = measure_step_time(trial, settings, families, kSeconds);
}

// Returns the forecast of a run whose experts need less memory than those of `f`, which does not fit: the run
// keeps fewer rows of its experts and, if that is not enough, sends tokens in more rounds. Returns nothing if
// the run does not fit either. `e`: the experiment of `f` without derived settings.
std::optional<TrainingForecast> forecast_of_smaller_buffers(config::Experiment e, const TrainingForecast& f,
                                                            const FamilyRegistry& families, int on_host) {
  if (may_keep_fewer_rows(f.experiment.trainer, f.model)) {
    e.trainer->moe_expert_capacity_margin = MoeConfig::Training::kFewerRows;
  } else {
    const int rank = static_cast<int>(f.neediest) * f.mesh.stage_ranks(f.world);
    const std::int64_t known = f.model.moe.training.rounds;
    const std::int64_t rounds =
        expert_rounds_that_fit(known, most_expert_rounds(e.trainer, f.model), f.experiment, f.model, families,
                               f.memory.supply, f.world, rank);
    if (rounds == known) return std::nullopt;
    e.trainer->moe_expert_rounds = rounds;
  }
  Logger quiet(LogOptions{.console_level = LogLevel::kError});  // the caller has logged the notes
  TrainingForecast smaller = Trainer(e, families, quiet).forecast(f.world, on_host);
  return smaller.memory.fits ? std::optional(std::move(smaller)) : std::nullopt;
}

// Logs the settings that forecast_of_smaller_buffers() has added to `given`.
void note_smaller_buffers(Logger& log, const config::TrainerConfig& given, const config::TrainerConfig& c) {
  if (c.moe_expert_capacity_margin && !given.moe_expert_capacity_margin)
    log.info("{}", describe_fewer_rows());
  if (c.moe_expert_rounds && c.moe_expert_rounds != given.moe_expert_rounds) {
    log.info("{}{}", describe_expert_rounds(*c.moe_expert_rounds),
             given.moe_expert_rounds
                 ? fmt::format("; the run that continues had {}", *given.moe_expert_rounds)
                 : "");
  }
}

// Returns the fraction of a step during which a pipeline stage waits.
double bubble_of(const PipelineSettings& pipeline, int stages, std::int64_t microbatches) {
  if (stages == 1) return 0;
  return engine::simulate(engine::make_schedule(pipeline.schedule, stages, pipeline.chunks, microbatches))
      .bubble;
}

// Measures the first rank of each pipeline stage. Returns the memory that the run can use, and adds notes on
// the device to `notes`.
MemorySupply measure_stages(TrainingForecast& f, const SessionSettings& settings,
                            const FamilyRegistry& families, int on_host, std::vector<std::string>& notes) {
  const config::Experiment& e = f.experiment;
  MemorySupply supply;
  if (e.hardware) f.hardware = HardwarePlan{.profile = e.hardware};
  const bool sends_rows = shares_experts(e.trainer, f.model) && f.model.moe.training.all_to_all;
  for (int stage = 0; stage < f.mesh.pipeline; ++stage) {
    turbo::PlannedDevice planned = planning_device(e, on_host, stage == 0 ? &notes : nullptr);
    const bool by_cpu_kernels = planned.by_cpu_kernels;
    engine::Rank rank(std::move(planned.device),
                      measuring_mesh(e, f.world, stage * f.mesh.stage_ranks(f.world)));
    f.stages.push_back(measure_session(rank, settings, families));
    const DeviceCollectives* const collectives =
        sends_rows && !by_cpu_kernels ? turbo::collectives_of(rank.device()) : nullptr;
    if (collectives) f.expert_rows = comm::planned_rows(comm::wanted_counted_rows(), collectives->peers);
    if (f.step().memory.total() < f.stages.back().memory.total()) f.neediest = f.stages.size() - 1;
    const std::int64_t groups = group_bytes(rank.device(), rank.mesh());
    f.program_bytes = std::max(f.program_bytes, context_bytes(rank.device()) + groups);
    if (f.hardware) {
      const PlannedMemory memory = planned_memory(*e.hardware, rank.device(), rank.mesh(), by_cpu_kernels);
      // Plans every rank with the memory of the stage that reserves the most memory.
      if (memory.reserved() >= f.hardware->memory.reserved()) f.hardware->memory = memory;
      f.hardware->by_cpu_kernels = by_cpu_kernels;
      supply = supply_of(*e.hardware, f.hardware->memory);
    } else {
      supply = supply_of(rank.device());
      if (!supply.shared) supply.device -= groups;
    }
  }
  return supply;
}

}  // namespace

TrainingForecast Trainer::forecast(int world, int on_host) {
  std::vector<std::string> notes = notes_;
  const std::unique_ptr<Objective> objective = make_objective(experiment_.trainer);
  const ObjectivePlan plan = objective->plan(experiment_, families_, world);
  for (const std::string& fact : plan.facts) log_.info("{}", fact);
  config::Experiment e = with_loaded_model(plan.experiment, families_, &notes);
  const config::TrainerConfig& c = e.trainer;
  // A forecast needs no tokenizer file if the experiment sets the number of tokens.
  const bool there = !c.vocab_size || !missing_tokenizer(c) || kept_tokenizer(e);
  const std::unique_ptr<const Tokenizer> tokenizer = there ? tokenizer_of(e, &notes) : nullptr;
  ModelConfig model = model_of(e, families_, tokenizer.get(), &notes);
  // A plan for other hardware is the plan of a new run.
  const auto rounds = e.hardware ? std::nullopt : continued_expert_rounds(e);
  if (rounds && shares_experts(c, model)) e.trainer->moe_expert_rounds = model.moe.training.rounds = *rounds;
  for (const std::string& note : notes) log_.warning("{}", note);
  objective->check_samples(e);
  assume_expert_hosts(e, model.moe, world, on_host);
  std::string microbatch = has_chosen_microbatch(e) ? fmt::format("{}", fmt::join(plan.facts, "; ")) : "";
  if (const std::string fewer =
          fit_chosen_microbatch(e, model, families_, planning_supply(e, world, on_host), world);
      !fewer.empty())
    microbatch += "; " + fewer;
  SessionSettings settings = session_settings_of(e, model, world);
  notes.clear();
  TrainingForecast f{.experiment = e,
                     .microbatch = std::move(microbatch),
                     .model = model,
                     .world = world,
                     .mesh = mesh_shape_of(e, world)};
  if (tokenizer)
    settings.filled_microbatches = objective->filled_microbatches({.experiment = e, .tokenizer = *tokenizer},
                                                                  settings.step, f.mesh.data(world));
  MemorySupply supply = measure_stages(f, settings, families_, on_host, notes);
  for (const std::string& note : notes) log_.warning("{}", note);
  for (const std::string& warning : RunTrace::absent_ranks(c, world)) log_.warning("{}", warning);
  warn_without_graphs(log_, f.step().why_not_recorded);
  supply.host /= on_host;
  if (supply.shared) {
    supply.device /= on_host;
    f.program_bytes = program_bytes(f.mesh, world, on_host);
  }
  f.bubble = bubble_of(settings.step.pipeline, f.mesh.pipeline, settings.step.microbatches);
  const std::int64_t samples = f.step().microbatches * c.micro_batch_size * f.mesh.data(world);
  f.model_flops_per_step = training_flops(model, samples, c.seq_length);
  f.tokens_per_step = samples * c.seq_length;
  f.checkpoint_bytes = checkpoint_bytes(f.step(), settings, !c.no_save_optim);
  f.memory = {.need = memory_need(e, settings, f.step()), .supply = supply};
  f.memory.fits = fits(f.memory.need, supply);
  if (!f.memory.fits) {
    std::optional<TrainingForecast> smaller = forecast_of_smaller_buffers(experiment_, f, families_, on_host);
    if (smaller) note_smaller_buffers(log_, c, smaller->experiment.trainer);
    if (smaller) return *std::move(smaller);
    f.memory = fit_memory(e, model, families_, f.step(), supply, world,
                          static_cast<int>(f.neediest) * f.mesh.stage_ranks(world));
  }
  f.balanced = balanced_stages(e, model.moe, families_, tokenizer.get(), world, on_host);
  f.steps = c.train_iters;
  if (tokenizer && c.train_epochs && length_is_open(c)) {
    const auto samples =
        objective->planned_samples({.experiment = e, .tokenizer = *tokenizer}, *c.train_epochs);
    if (samples) f.steps = steps_of_samples(*samples, c);
  }
  if (f.hardware) {
    plan_time(f, settings.compute);
  } else {
    const DeviceSpec device = turbo::choose_device(device_spec_of(e, on_host));
    try {
      time_here(f, device, settings, families_);
    } catch (const Error& error) {
      if (device.kind == "cpu") throw;
      log_.warning("planned without the device, so the time is unknown: {}", error.what());
      return f;
    }
  }
  if (c.train_minutes && length_is_open(c))
    f.steps = steps_within(*c.train_minutes * 60, f.seconds_per_step, c);
  return f;
}

}  // namespace primus
