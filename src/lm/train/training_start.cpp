#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <span>

#include "base/error.h"
#include "base/files/file.h"
#include "base/terminal/terminal.h"
#include "config/stages.h"
#include "config/trainer_config.h"
#include "device/timing.h"
#include "lm/events/run_job.h"
#include "lm/generate/model_folder.h"
#include "lm/model/stated_adapters.h"
#include "lm/train/mlperf_run.h"
#include "lm/train/run_checks.h"
#include "lm/train/run_data.h"
#include "lm/train/settings/expert_hosts.h"
#include "lm/train/settings/loaded_tokenizer.h"
#include "lm/train/settings/start_weights.h"
#include "lm/train/settings/training_settings.h"
#include "lm/train/step/fp8_state.h"
#include "lm/train/step/loss_rule.h"
#include "lm/train/training_run.h"
#include "turbo/devices/devices.h"
#include "turbo/devices/work_device.h"

namespace primus {

void Trainer::Run::lock_folder() {
  if (!plan.ranks.first()) return;
  plan.folder.create();
  lock.emplace(plan.folder.root());
  earlier = read_ending(plan.folder.root());
}

// Writes the experiment into the run's folder, so that tools find this run's checkpoints and users can repeat
// the run from another folder.
void Trainer::Run::record_experiment() const {
  write_file_atomic(plan.folder.experiment_file(), experiment_text(config::with_absolute_paths(plan.e)));
}

void Trainer::Run::prepare() {
  // Locks the folder only if it exists: a run that is refused because of its data must not create a folder.
  if (Env::posix().status(plan.folder.root())) lock_folder();
  compare_experiments(plan);
  // Checks `load` before reading the data, because reading may take long. A run that resumes does not need
  // `load`.
  const bool goes_on = plan.c.auto_continue_train &&
                       find_resume_point(checkpoint_root_of(plan.e), Validation::kStructure).reader;
  if (plan.c.load && !Env::posix().status(*plan.c.load) && !goes_on) throw nothing_to_load(plan.e);
  length.plan();
  open_run_data(plan);
  if (!lock) lock_folder();
  log_run_data(plan, facts);
  open_rank();
  const StepMeasurement measured = measure();
  open_session(measured);
  open_monitor(measured);
  if (progress.iteration >= progress.last_iteration) return publish_start(measured);
  length.warn_of_few_steps();
  length.warn_of_little_data();
  // Sets checkpoints aside only now, so that the record of the previous run is kept if this run is refused or
  // has nothing to do.
  checkpointer->set_aside();
  if (plan.ranks.first()) record_experiment();
  loader = std::make_unique<data::BatchLoader>(
      *plan.datasets.train,
      plan.loader_options(progress.iteration * plan.c.global_batch_size, plan.c.global_batch_size));
  // Publishes the start last, so that an error during the start is not recorded as the run's ending.
  publish_start(measured);
}

void Trainer::Run::publish_start(const StepMeasurement& measured) {
  plan.monitor->begin(run_facts(measured));
  if (!plan.ranks.first()) return;
  for (RunWarning& finding : progress.findings) {
    finding.iteration = progress.iteration;
    plan.monitor->warn(finding);
  }
}

namespace {

// Chooses how tokens travel to the experts of other ranks, and logs the choice.
void announce_expert_rows(const RunPlan& plan, engine::Mesh& mesh) {
  if (!plan.model.moe.training.all_to_all || !mesh.experts()) return;
  const engine::ExpertHosts hosts = mesh.expert_hosts();
  const auto announce = [&](comm::Communicator& group, std::string_view where) {
    const std::string way = group.prepare_rows();
    if (plan.ranks.first() && !way.empty()) plan.log.info("tokens for experts{}: {}", where, way);
  };
  if (!hosts) return announce(*mesh.experts(), "");
  announce(*hosts.between, " of other hosts");
  announce(*hosts.within, " of the host");
}

}  // namespace

void Trainer::Run::open_rank() {
  std::vector<std::string> device_notes;
  const DeviceSpec spec = plan.choose_device(&device_notes);
  for (const std::string& note : device_notes) plan.log.warning("{}", note);
  std::unique_ptr<Device> device = turbo::open_device(spec);
  plan.ranks.wait_for_busy(std::chrono::minutes(plan.c.distributed_timeout_minutes),
                           [this](const std::string& busy) { plan.log.info("waiting: {}", busy); });
  open_trace();
  if (trace) {
    device = trace->watch(std::move(device));
    if (std::exchange(plan.settings.step.record_after, 0) > 0)
      warn_without_graphs(plan.log, "profile tells their kernels apart");
  }
  // A trace shows the waits, too, and its device does not wrap another wrapper.
  const DeviceTiming* const timing = trace || plan.ranks.single() ? nullptr : turbo::timing_of(*device);
  if (timing) {
    times.meter = std::make_shared<turbo::WorkMeter>(*device, *timing);
    device = turbo::make_work_device(std::move(device), times.meter);
  }
  engine::Mesh mesh = plan.ranks.make_mesh(*device, plan.shape, orders_sums(plan.e));
  rank = std::make_unique<engine::Rank>(std::move(device), std::move(mesh));
  if (const comm::Communicator* const tensor = rank->mesh().tensor()) {
    if (tensor->by_copy_engines()) plan.log.info("tensor ranks communicate through copy engines");
    const std::string why = tensor->why_no_copy_engines();
    if (!why.empty()) plan.log.info("tensor ranks communicate without copy engines: {}", why);
  }
  announce_expert_rows(plan, rank->mesh());
  if (plan.c.moe_ranks_per_host) return;
  engine::MeshShape without_hosts = plan.shape;
  without_hosts.host = 0;
  const std::string note = choose_expert_hosts(plan.model.moe, without_hosts, plan.ranks.per_host()).note;
  if (!note.empty()) plan.log.info("{}", note);
}

namespace {

// Throws if `folder`, the model of lora.adapters, is a checkpoint whose weights cannot be their base.
void refuse_checkpoint_as_base(const RunPlan& plan, const Path& folder) {
  if (!Env::posix().status(folder / Manifest::kFileName)) return;
  if (!plan.c.finetune)
    throw plan.e.error_for(
        "lora", "lora.adapters needs a base model, but load is a checkpoint that the run continues",
        "set finetune=true to read only the weights of load");
  if (load_model_config({folder, {}}, plan.families).lora)
    throw plan.e.error_for(
        "lora", "lora.adapters needs a base model without adapters, but load has adapters",
        "merge them into the weights first (primus model export), and set load to the result");
}

}  // namespace

StepMeasurement Trainer::Run::measure() {
  StepMeasurement measured = measure_within_memory(plan, *rank);
  const engine::MemoryPlan& memory = measured.memory;
  warn_without_graphs(plan.log, measured.why_not_recorded);
  constexpr double kMiB = 1 << 20;
  const std::int64_t outside = context_bytes(rank->device()) + group_bytes(rank->device(), rank->mesh());
  plan.log.info(
      "{} | {:.1f}M parameters | memory: {:.0f} MiB persistent (weights, gradients, optimizer), {:.0f} MiB "
      "stash "
      "(activations), {:.0f} MiB scratch{}",
      rank->device().description(), static_cast<double>(measured.parameters) / 1e6,
      static_cast<double>(memory.persistent) / kMiB, static_cast<double>(memory.stash) / kMiB,
      static_cast<double>(memory.scratch) / kMiB,
      outside > 0
          ? fmt::format(", about {:.0f} MiB program and libraries", static_cast<double>(outside) / kMiB)
          : "");
  if (plan.model.lora) {
    plan.log.info("lora: {} of {} parameters are trained, in {}",
                  human_count(static_cast<double>(measured.trained_parameters)),
                  human_count(static_cast<double>(measured.parameters)),
                  plan.model.lora.by_matrix
                      ? fmt::format("adapters of {} matrices", plan.model.lora.by_matrix.matrices.size())
                      : fmt::format("{}", fmt::join(plan.model.lora.modules, ", ")));
  }
  if (plan.c.async_save) {
    plan.log.info(
        "background saving needs {:.0f} MiB more, for a copy of the checkpoint (async_save=false needs none)",
        static_cast<double>(checkpoint_bytes(measured, plan.settings, !plan.c.no_save_optim)) / kMiB);
  }
  // Compares config.json with the weights before memory is allocated for the model.
  if (plan.c.load && Env::posix().status(loaded_folder(*plan.c.load) / "config.json")) {
    const Path folder = loaded_folder(*plan.c.load);
    const std::optional<Path> adapters = adapters_to_load(plan.e);
    if (adapters) refuse_checkpoint_as_base(plan, folder);
    const SafetensorsFolder weights =
        adapters ? SafetensorsFolder::open_adapted(folder, *adapters) : SafetensorsFolder::open(folder);
    for (const std::string& warning : weights.warnings()) plan.log.warning("{}", warning);
    check_weight_shapes(weights, plan.model, plan.families, Adapters::kMayBeMissing);
  }
  check_memory(plan, *rank, measured);
  if (plan.ranks.first()) check_disk(plan, measured);
  return measured;
}

namespace {

// Logs the frozen models of the loss: a reference model, a teacher, or reward models. Warns if the reference
// model is not the model at the start of the run.
void log_frozen_models(const RunPlan& plan, const LossRule& rule) {
  ModelConfig whole = plan.model;
  whole.lora = {};
  if (!plan.ranks.first()) return;
  bool has_reference = false;
  for (const FrozenModel& frozen : rule.frozen_models(whole)) {
    if (!frozen.folder.empty()) plan.log.info("{}: {}", frozen.name, frozen.folder.string());
    has_reference = has_reference || frozen.folder.empty();
  }
  if (!has_reference) return;
  const std::optional<StartWeights> start = start_weights_of(plan.e);
  if (!plan.model.lora) {
    return plan.log.info("reference model: the model at the start of the run ({})",
                         start ? start->folder.string() : "random weights");
  }
  const std::optional<Path> adapters = adapters_to_load(plan.e);
  const bool trained = adapters || (start && Env::posix().status(start->folder / "config.json") &&
                                    load_model_config({start->folder, {}}, plan.families).lora);
  if (!trained)
    return plan.log.info("reference model: the model without adapters, which is the start of the run");
  plan.log.warning(
      "reference model: the base model without adapters, but the run starts from trained adapters: the loss "
      "compares with the model before these adapters were trained. To compare with the start of the run, set "
      "{} in a new run (exp_name=NEW)",
      adapters
          ? fmt::format("reference_adapters={}", adapters->string())
          : fmt::format("reference_adapters=FOLDER, which 'primus model export {} FOLDER --adapters' writes,",
                        start->folder.string()));
}

}  // namespace

void Trainer::Run::open_session(const StepMeasurement& measured) {
  rank->reserve(measured.memory);
  session = std::make_unique<TrainingSession>(*rank, plan.settings, plan.families);
  session->step().set_timing(turbo::timing_of(rank->device()));
  if (plan.ranks.first()) note_settings_without_effect(plan, session->store());
  checkpointer = std::make_unique<Checkpointer>(plan, progress, *session, trace.get());
  plan.phase("loading weights");
  checkpointer->load_or_initialize();
  session->parallel().distribute_values();
  if (LossRule* const rule = session->rule()) {
    plan.objective->connect(*rule, plan.data_request(), plan.datasets);
    rule->load_weights(*session);
    log_frozen_models(plan, *rule);
  }
  checkpointer->open();
  progress.first_iteration = progress.iteration;
}

void Trainer::Run::open_monitor(const StepMeasurement& measured) {
  run_monitor = std::make_unique<TrainingMonitor>(plan.folder, monitor_options(), plan.log);
  plan.monitor = run_monitor.get();
  progress.last_iteration = plan.c.train_iters;
  if (progress.clock)
    progress.last_iteration =
        progress.clock->state().finished ? progress.iteration : progress.kNoLastIteration;
  evaluator = std::make_unique<Evaluator>(
      plan, progress, *session, trace.get(),
      [this](data::BatchLoader& batches) -> const data::Batch& { return next_batch(batches); });
  if (progress.iteration > 0) evaluator->end_at_target();
  checkpointer->log_changes(progress.iteration >= progress.last_iteration);
  checks.nan = std::make_unique<NanSearch>(plan, progress, *session);
  checks.corruption = std::make_unique<CorruptionWatch>(
      CorruptionSettings{.copies = plan.c.check_weight_hash_across_dp_replicas_interval.value_or(0),
                         .replay = plan.c.replay_step_interval.value_or(0),
                         .products = plan.c.golden_product_interval.value_or(0),
                         .stop = plan.c.corruption_action == "stop",
                         .deterministic = plan.c.deterministic_mode},
      plan, progress, *session, *checkpointer);
  report = std::make_unique<StepReport>(plan, progress, *rank, measured.memory, times.meter);
  session->step().set_schedule_clock(report->timeline().clock());
  plan.phase("");
  sampler = std::make_unique<Sampler>(plan, progress, *session);
}

RunFacts Trainer::Run::run_facts(const StepMeasurement& measured) const {
  const std::string device = rank->device().description();
  const std::string compute{name_of(plan.settings.compute)};
  return {.folder = plan.folder.root().string(),
          .description = fmt::format("{}, {} parameters, {}, {}", plan.model.family,
                                     human_count(static_cast<double>(measured.parameters)), compute, device),
          .first_iteration = progress.iteration,
          .train_iters = progress.total_steps(plan.c),
          .trains = progress.iteration < progress.last_iteration,
          .version = plan.options.version,
          .model = plan.model.family,
          .parameters = measured.parameters,
          .device = device,
          .compute = compute,
          .world = plan.ranks.size(),
          .mesh = fmt::format("tensor {}, context {}, pipeline {}, data {}, expert {}", plan.shape.tensor,
                              plan.shape.context, plan.shape.pipeline, plan.shape.data(plan.ranks.size()),
                              plan.shape.expert),
          .host = host_name(),
          .pid = ::getpid(),
          .experiment = plan.ranks.first() ? experiment_text(config::with_absolute_paths(plan.e)) : "",
          .job = plan.ranks.first() ? to_json(this_job()) : "",
          .state_from = checkpointer->state_from()};
}

MonitorOptions Trainer::Run::monitor_options() {
  MonitorOptions what{.resume_iteration = progress.iteration,
                      .log_interval = static_cast<int>(plan.c.log_interval),
                      .tensorboard_log_interval = static_cast<int>(plan.c.tensorboard_log_interval),
                      .tensorboard = !plan.c.disable_tensorboard,
                      .samples = plan.c.sample_interval.has_value() || plan.c.log_completions,
                      .target_eval_loss = plan.c.target_eval_loss,
                      .view = plan.options.view,
                      .alerts = plan.options.alerts,
                      .rank = plan.ranks.rank()};
  if (config::stage_of(plan.c).mlperf_log && plan.ranks.first()) {
    std::vector<std::string> notes;
    what.mlperf =
        mlperf_options_of(plan.c, plan.shape, plan.ranks.size(), plan.settings.sharding, plan.folder, notes);
    what.mlperf->init_ms = init_ms;
    what.mlperf->entries.emplace_back("init_checkpoint_step", progress.iteration);
    for (const std::string& note : notes) plan.log.warning("{}", note);
    plan.log.info("the MLPerf log is {}", what.mlperf->file.string());
  }
  return what;
}

void Trainer::Run::open_trace() {
  if (!plan.c.profile) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::int64_t origin =
      plan.ranks.from_first(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
  if (plan.ranks.first()) {
    for (const std::string& warning : RunTrace::absent_ranks(plan.c, plan.ranks.size()))
      plan.log.warning("{}", warning);
  }
  if (!RunTrace::wanted(plan.c, plan.ranks.rank())) return;
  const PipelineSettings& pipeline = plan.settings.step.pipeline;
  trace = std::make_unique<RunTrace>(
      plan.c,
      RunTrace::Options{
          .folder = plan.folder.traces(),
          .rank = plan.ranks.rank(),
          .world = plan.ranks.size(),
          .origin_us = origin,
          .facts =
              fmt::format(R"("stage": {}, "stages": {}, "chunks": {}, "microbatches": {}, "schedule": "{}")",
                          plan.place.stage, plan.shape.pipeline, pipeline.chunks,
                          plan.settings.step.microbatches, engine::traits_of(pipeline.schedule).name)},
      plan.log);
}

}  // namespace primus
