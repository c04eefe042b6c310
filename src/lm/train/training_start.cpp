#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <span>

#include "base/error.h"
#include "base/files/file.h"
#include "base/terminal/terminal.h"
#include "config/stages.h"
#include "lm/train/fp8_state.h"
#include "lm/train/loaded_tokenizer.h"
#include "lm/train/mlperf_run.h"
#include "lm/train/training_run.h"
#include "turbo/devices/devices.h"

namespace primus {
namespace {}  // namespace

void Trainer::Run::lock_folder() {
  if (!ranks.first()) return;
  folder.create();
  lock.emplace(folder.root());
}

DeviceSpec Trainer::Run::choose_device(std::vector<std::string>* notes) const {
  DeviceSpec spec = turbo::choose_device(device_spec_of(e, ranks.on_host()), notes);
  const bool named = c.device.find(':') != std::string::npos;
  if (spec.kind != "cpu" && !named) spec.ordinal = ranks.number_on_host();
  return spec;
}

void Trainer::Run::compare_experiments() {
  // The program first: another version may have other settings.
  ranks.require_same({{"the version of Primus", options.version}});
  // Results do not depend on how many threads compute them, and hosts have unlike numbers of cores.
  config::Experiment compared = e;
  compared.trainer.num_threads = 0;
  compared.env.erase("OMP_NUM_THREADS");
  const std::string text = experiment_text(std::move(compared));
  std::vector<std::pair<std::string, std::string>> settings_now;
  for (const auto& [key, value] : settings_of(text)) settings_now.emplace_back(key, value);
  settings_now.emplace_back("the tokenizer", fmt::format("{:016x}", tokenizer->fingerprint()));
  ranks.require_same(settings_now);
  ranks.require_same({{"the experiment", text}});  // what is in no setting of its own
}

void Trainer::Run::compare_data() {
  const auto data = data_identity();
  ranks.require_same({{"the data", data ? fmt::format("{:016x}", data->fingerprint) : "none"}});
}

// Lets tools find this run's checkpoints, and people run it again from another folder.
void Trainer::Run::record_experiment() const {
  write_file_atomic(folder.experiment_file(), experiment_text(config::with_absolute_paths(e)));
}

void Trainer::Run::prepare() {
  // A run that is refused for its data leaves no folder where there was none.
  if (Env::posix().status(folder.root())) lock_folder();
  compare_experiments();
  // Before the data is read, which may take long. A run that goes on does without what it began with.
  const bool goes_on =
      c.auto_continue_train && find_resume_point(checkpoint_root_of(e), Validation::kStructure).reader;
  if (c.load && !Env::posix().status(*c.load) && !goes_on) throw nothing_to_load(e);
  plan_length();
  open_data();
  if (!lock) lock_folder();
  tell_data();
  open_rank();
  const StepMeasurement measured = measure();
  open_session();
  open_monitor();
  if (iteration >= last_iteration) return monitor->begin(run_facts(measured));
  warn_of_few_steps();
  // Only now: a run that is refused, or has nothing to do, leaves the record of one that trained.
  checkpointer->set_aside();
  if (ranks.first()) record_experiment();
  loader = std::make_unique<data::BatchLoader>(
      *datasets.train, loader_options(iteration * c.global_batch_size, c.global_batch_size));
  // Last: an error of a start is not recorded as a run's ending.
  monitor->begin(run_facts(measured));
}

void Trainer::Run::open_data() {
  cyclic_order = choose_cyclic_order();
  const auto open = [this] {
    phase("opening the data");
    datasets = objective->open(data_request());
  };
  if (objective->opens_at_once()) {
    open();
  } else {
    ranks.first_then_others(open);
  }
  compare_data();
  if (c.target_eval_loss && !datasets.valid) {
    throw e.error_for("target_eval_loss",
                      fmt::format("target_eval_loss is {}, and there is no validation data to reach it on",
                                  *c.target_eval_loss),
                      "give it a share (split), or a file of its own");
  }
}

void Trainer::Run::tell_data() const {
  for (const auto& notes : {tokenizer->notes(), model_notes, datasets.notes}) {
    for (const std::string& note : notes) log.warning("{}", note);
  }
  log.info("{}", describe_tokenizer(e, *tokenizer));
  for (const auto& sentences : {facts, datasets.facts}) {
    for (const std::string& fact : sentences) log.info("{}", fact);
  }
  if (c.eval_iters > 0 && !datasets.valid) {
    log.warning("eval_iters is {}, and there is no validation data: give it a share (split), or {}",
                c.eval_iters, objective->validation_hint());
  }
  const bool nobody_chose = !c.split && e.provenance_of("eval_iters").layer < config::Layer::kOverrides;
  if (c.eval_iters == 0 && nobody_chose && !c.data_path.empty()) {
    log.warning(
        "a part of data_path is held out for validation, and nothing is evaluated: set eval_iters to the "
        "batches of an evaluation (4, say), or train on all of it with split: 100,0,0");
  }
}

void Trainer::Run::open_rank() {
  std::vector<std::string> device_notes;
  const DeviceSpec spec = choose_device(&device_notes);
  for (const std::string& note : device_notes) log.warning("{}", note);
  std::unique_ptr<Device> device = turbo::open_device(spec);
  ranks.wait_for_busy(std::chrono::minutes(c.distributed_timeout_minutes),
                      [this](const std::string& busy) { log.info("waiting: {}", busy); });
  open_trace();
  if (trace) {
    device = trace->watch(std::move(device));
    if (std::exchange(settings.step.record_after, 0) > 0)
      warn_without_graphs(log, "profile tells their kernels apart");
  }
  engine::Mesh mesh = ranks.make_mesh(*device, shape);
  rank = std::make_unique<engine::Rank>(std::move(device), std::move(mesh));
  if (const comm::Communicator* const tensor = rank->mesh().tensor()) {
    if (tensor->by_copy_engines()) log.info("tensor ranks exchange by copy engines");
    const std::string why = tensor->why_no_copy_engines();
    if (!why.empty()) log.info("tensor ranks exchange without copy engines: {}", why);
  }
}

StepMeasurement Trainer::Run::measure() {
  StepMeasurement measured = measure_session(*rank, settings, families);
  memory = measured.memory;
  warn_without_graphs(log, measured.why_not_recorded);
  constexpr double kMiB = 1 << 20;
  const std::int64_t beside = context_bytes(rank->device()) + group_bytes(rank->device(), rank->mesh());
  log.info(
      "{} | {:.1f}M parameters | memory: {:.0f} MiB persistent (weights, gradients, optimizer), {:.0f} MiB "
      "stash "
      "(activations), {:.0f} MiB scratch{}",
      rank->device().description(), static_cast<double>(measured.parameters) / 1e6,
      static_cast<double>(memory.persistent) / kMiB, static_cast<double>(memory.stash) / kMiB,
      static_cast<double>(memory.scratch) / kMiB,
      beside > 0 ? fmt::format(", about {:.0f} MiB program and libraries", static_cast<double>(beside) / kMiB)
                 : "");
  if (model.lora) {
    log.info("lora: {} of {} parameters are trained, beside {}",
             human_count(static_cast<double>(measured.trained_parameters)),
             human_count(static_cast<double>(measured.parameters)), fmt::join(model.lora.modules, ", "));
  }
  if (c.async_save) {
    log.info(
        "background saving needs {:.0f} MiB more, for a copy of the checkpoint (async_save=false needs none)",
        static_cast<double>(checkpoint_bytes(measured, settings, !c.no_save_optim)) / kMiB);
  }
  // A config.json that promises more than there are weights must not cost memory first.
  if (c.load && Env::posix().status(loaded_folder(*c.load) / "config.json")) {
    check_weight_shapes(SafetensorsFolder::open(loaded_folder(*c.load)), model, families,
                        Adapters::kMayBeMissing);
  }
  check_memory(measured);
  if (ranks.first()) check_disk(measured);
  return measured;
}

void Trainer::Run::open_session() {
  rank->reserve(memory);
  device_properties = rank->device().properties();
  session = std::make_unique<TrainingSession>(*rank, settings, families);
  session->step().set_timing(turbo::timing_of(rank->device()));
  checkpointer = std::make_unique<Checkpointer>(*this, *this, *session, trace.get());
  phase("loading weights");
  checkpointer->load_or_initialize();
  session->parallel().distribute_values();
  if (session->rule()) session->rule()->load_weights(*session);
  checkpointer->open();
  first_iteration = iteration;
}

void Trainer::Run::open_monitor() {
  run_monitor = std::make_unique<TrainingMonitor>(folder, monitor_options(), log);
  monitor = run_monitor.get();
  last_iteration = c.train_iters;
  if (clock) last_iteration = clock->state().finished ? iteration : kNoLastIteration;
  evaluator = std::make_unique<Evaluator>(
      *this, *this, *session, trace.get(),
      [this](data::BatchLoader& batches) -> const data::Batch& { return next_batch(batches); });
  if (iteration > 0) evaluator->end_at_target();
  measure_peak();
  meter = std::make_unique<ThroughputMeter>(
      ThroughputOptions{.train_iters = clock ? 0 : c.train_iters,
                        .world_size = ranks.size(),
                        .peak_flops_per_device = peak ? peak->value().value_or(0) : 0,
                        .avg_skip_iterations = static_cast<int>(c.log_avg_skip_iterations),
                        .avg_reset_interval = static_cast<int>(c.log_avg_reset_interval)});
  phase("");
  if (session->decoding()) sample_prompt = find_sample_prompt();
}

RunFacts Trainer::Run::run_facts(const StepMeasurement& measured) const {
  const std::string device = rank->device().description();
  const std::string compute{name_of(settings.compute)};
  return {.folder = folder.root().string(),
          .description = fmt::format("{}, {} parameters, {}, {}", model.family,
                                     human_count(static_cast<double>(measured.parameters)), compute, device),
          .first_iteration = iteration,
          .train_iters = total_steps(c),
          .trains = iteration < last_iteration,
          .version = options.version,
          .model = model.family,
          .parameters = measured.parameters,
          .device = device,
          .compute = compute,
          .world = ranks.size(),
          .mesh = fmt::format("tensor {}, context {}, pipeline {}, data {}, expert {}", shape.tensor,
                              shape.context, shape.pipeline, shape.data(ranks.size()), shape.expert),
          .host = host_name(),
          .experiment = ranks.first() ? experiment_text(config::with_absolute_paths(e)) : ""};
}

MonitorOptions Trainer::Run::monitor_options() {
  MonitorOptions what{.resume_iteration = iteration,
                      .log_interval = static_cast<int>(c.log_interval),
                      .tensorboard_log_interval = static_cast<int>(c.tensorboard_log_interval),
                      .tensorboard = !c.disable_tensorboard,
                      .samples = c.sample_interval.has_value(),
                      .target_eval_loss = c.target_eval_loss,
                      .view = options.view,
                      .rank = ranks.rank()};
  if (config::stage_of(c).mlperf_log && ranks.first()) {
    std::vector<std::string> notes;
    what.mlperf = mlperf_options_of(c, shape, ranks.size(), settings.sharding, folder, notes);
    what.mlperf->init_ms = init_ms;
    what.mlperf->entries.emplace_back("init_checkpoint_step", iteration);
    for (const std::string& note : notes) log.warning("{}", note);
    log.info("the MLPerf log is {}", what.mlperf->file.string());
  }
  return what;
}

void Trainer::Run::open_trace() {
  if (!c.profile) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::int64_t origin =
      ranks.from_first(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
  if (ranks.first()) {
    for (const std::string& named : c.profile_ranks) {
      if (named != "all" && std::stoll(named) >= ranks.size())
        log.warning("profile_ranks names rank {}, and there are {} ranks", named, ranks.size());
    }
  }
  if (!RunTrace::wanted(c, ranks.rank())) return;
  const PipelineSettings& pipeline = settings.step.pipeline;
  trace = std::make_unique<RunTrace>(
      c,
      RunTrace::Options{
          .folder = folder.traces(),
          .rank = ranks.rank(),
          .world = ranks.size(),
          .origin_us = origin,
          .facts =
              fmt::format(R"("stage": {}, "stages": {}, "chunks": {}, "microbatches": {}, "schedule": "{}")",
                          place.stage, shape.pipeline, pipeline.chunks, settings.step.microbatches,
                          engine::traits_of(pipeline.schedule).name)},
      log);
}

std::vector<std::int32_t> Trainer::Run::find_sample_prompt() const {
  if (c.sample_prompt) {
    std::vector<std::int32_t> ids = tokenizer->encode(*c.sample_prompt);
    if (!ids.empty()) return ids;
  }
  return objective->sample_prompt(datasets, data_request());
}

}  // namespace primus
