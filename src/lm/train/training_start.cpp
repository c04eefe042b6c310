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
namespace {

// Whether another value of this setting teaches something else. The others say how a run is watched and
// saved.
bool decides_learning(std::string_view key) {
  for (const char* prefix : {"lr",
                             "min_lr",
                             "train_",
                             "weight_decay",
                             "start_weight_decay",
                             "end_weight_decay",
                             "adam_",
                             "lion_",
                             "muon_",
                             "optimizer",
                             "clip_grad",
                             "data_path",
                             "data_sharding",
                             "dataloader_type",
                             "dropout",
                             "attention_dropout",
                             "hidden_dropout",
                             "calculate_per_token_loss",
                             "sft_",
                             "lora",
                             "moe_"}) {
    if (key.starts_with(prefix)) return true;
  }
  return false;
}

}  // namespace

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

void Trainer::Run::open_data() {
  phase("opening the data");
  datasets = objective->open(data_request());
}

InputIdentity Trainer::Run::tokenizer_identity() const {
  return {.name = std::string(tokenizer->name()), .fingerprint = tokenizer->fingerprint()};
}

std::optional<InputIdentity> Trainer::Run::data_identity() const {
  if (!datasets.train) return std::nullopt;
  return InputIdentity{.name = objective->data_name(c), .fingerprint = datasets.train_fingerprint};
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
  cyclic_order = choose_cyclic_order();
  if (objective->opens_at_once()) {
    open_data();
  } else {
    ranks.first_then_others([&] { open_data(); });
  }
  compare_data();
  if (c.target_eval_loss && !datasets.valid) {
    throw e.error_for("target_eval_loss",
                      fmt::format("target_eval_loss is {}, and there is no validation data to reach it on",
                                  *c.target_eval_loss),
                      "give it a share (split), or a file of its own");
  }
  if (!lock) lock_folder();
  for (const auto& notes : {tokenizer->notes(), model_notes, datasets.notes}) {
    for (const std::string& note : notes) log.warning("{}", note);
  }
  log.info("{}", describe_tokenizer(e, *tokenizer));
  if (ranks.first()) bytes_per_token = objective->bytes_per_token(datasets, data_request());
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
  const StepMeasurement measured = measure_session(*rank, settings, families);
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
  rank->reserve(memory);
  device_properties = rank->device().properties();
  session = std::make_unique<TrainingSession>(*rank, settings, families);
  session->step().set_timing(turbo::timing_of(rank->device()));
  reader = std::make_unique<DeviceReader>(*rank);
  phase("loading weights");
  load_or_initialize();
  session->parallel().distribute_values();
  if (session->rule()) session->rule()->load_weights(*session);

  const Path root = checkpoint_root_of(e);
  if (ranks.first()) {
    make_folders(root);
    // It may belong to several experiments.
    if (c.save)
      checkpoints_lock.emplace(root, "wait for it or stop it, or let this run save elsewhere (save)");
    CheckpointRoot(root).recover();
    model_files = make_model_files();
  }
  first_iteration = iteration;
  writer = std::make_unique<AsyncWriter>(
      root, SaveOptions{.keep_last = static_cast<int>(c.keep_latest), .group = ranks.saving_group()});
  monitor = std::make_unique<TrainingMonitor>(folder, monitor_options(), log);
  last_iteration = c.train_iters;
  if (clock) last_iteration = clock->state().finished ? iteration : kNoLastIteration;
  if (iteration > 0) end_at_target();
  measure_peak();
  meter = std::make_unique<ThroughputMeter>(
      ThroughputOptions{.train_iters = clock ? 0 : c.train_iters,
                        .world_size = ranks.size(),
                        .peak_flops_per_device = peak ? peak->value().value_or(0) : 0,
                        .avg_skip_iterations = static_cast<int>(c.log_avg_skip_iterations),
                        .avg_reset_interval = static_cast<int>(c.log_avg_reset_interval)});
  phase("");
  if (session->decoding()) sample_prompt = find_sample_prompt();
  if (iteration >= last_iteration) return monitor->begin(run_facts(measured));
  warn_of_few_steps();
  // Only now: a run that is refused, or has nothing to do, leaves the record of one that trained.
  if (!c.auto_continue_train && ranks.first()) {
    if (const auto aside = CheckpointRoot(root).set_aside()) {
      log.warning("auto_continue_train is false: the checkpoints that were in '{}' are now in '{}'",
                  root.string(), aside->string());
    }
  }
  if (ranks.first()) record_experiment();
  loader = std::make_unique<data::BatchLoader>(
      *datasets.train, loader_options(iteration * c.global_batch_size, c.global_batch_size));
  // Last: an error of a start is not recorded as a run's ending.
  monitor->begin(run_facts(measured));
}

RunFacts Trainer::Run::run_facts(const StepMeasurement& measured) const {
  const std::string device = rank->device().description();
  const std::string compute{name_of(settings.compute)};
  return {.folder = folder.root().string(),
          .description = fmt::format("{}, {} parameters, {}, {}", model.family,
                                     human_count(static_cast<double>(measured.parameters)), compute, device),
          .first_iteration = iteration,
          .train_iters = total_steps(),
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

ResumePoint Trainer::Run::resume_point(const Path& root) const {
  ResumePoint point = find_resume_point(root, Validation::kFull, Env::posix(), ranks.group());
  for (const std::string& reason : point.rejected) log.warning("damaged checkpoint passed over: {}", reason);
  for (const std::string& note : point.notes) {
    log.warning("{}: {}; the newest good checkpoint is taken", root.string(), note);
  }
  return point;
}

void Trainer::Run::load_or_initialize() {
  if (c.auto_continue_train) {
    const ResumePoint point = resume_point(checkpoint_root_of(e));
    if (point.reader) {
      resume_from(*point.reader);
      return;
    }
  }
  if (!c.load) {
    session->store().initialize(rank->context(), static_cast<std::uint64_t>(c.seed));
    return;
  }
  session->store().initialize_low_rank(rank->context(), static_cast<std::uint64_t>(c.seed));
  Path load = loaded_root(*c.load);
  if (Env::posix().status(load / Manifest::kFileName)) {
    const CheckpointReader checkpoint =
        CheckpointReader::open(load, Validation::kFull, Env::posix(), ranks.group());
    c.finetune ? finetune_from(checkpoint) : resume_from(checkpoint);
  } else if (Env::posix().status(load / "config.json")) {
    load_weights(SafetensorsFolder::open(load), session->store(), *rank, Adapters::kMayBeMissing);
  } else {
    const ResumePoint point = resume_point(load);
    if (!point.reader) throw nothing_to_load(e);
    load = point.reader->folder();
    c.finetune ? finetune_from(*point.reader) : resume_from(*point.reader);
  }
  base = load.string();
  log.info("weights loaded from {}", load.string());
}

void Trainer::Run::finetune_from(const CheckpointReader& checkpoint) {
  refuse_another_model(checkpoint, e, model, settings.compute, families, Start::kFinetuned);
  load_checkpoint(checkpoint, session->store(), *rank, false, Adapters::kMayBeMissing);
}

void Trainer::Run::load_scales_of_fp8(const CheckpointReader& checkpoint) {
  const engine::DelayedScales* const scales = session->scales();
  if (!scales) return;
  if (c.no_load_optim) return log.warning("no_load_optim: the scales of fp8 begin at 1");
  const LoadedScales count = load_scales(checkpoint, *scales, *rank);
  if (count.missing == 0) return;
  log.warning("{} has no scales of fp8 (fp8_recipe: delayed) for {} of {} linear layers: they begin at 1",
              checkpoint.folder().string(), count.missing, count.missing + count.loaded);
}

void Trainer::Run::resume_from(const CheckpointReader& checkpoint) {
  const TrainerState state = read_trainer_state(checkpoint);
  refuse_another_model(checkpoint, e, model, settings.compute, families, Start::kContinued);
  if (state.global_batch_size != c.global_batch_size) {
    // The place in the data is steps times batch; with another batch it would be another place.
    throw e.error_for("global_batch_size",
                      fmt::format("this run was saved with global_batch_size {}, not {}",
                                  state.global_batch_size, c.global_batch_size),
                      "keep it, or start another run (exp_name) with load: " + checkpoint.folder().string());
  }
  const std::optional<InputIdentity> data = data_identity();
  refuse_other_inputs(checkpoint, state, e, tokenizer_identity(), data);
  const bool optimizer = !c.no_load_optim && has_optimizer_state(checkpoint);
  if (!optimizer && !c.no_load_optim) {
    log.warning("{} has no optimizer state (no_save_optim): its moments start from zero",
                checkpoint.folder().string());
  }
  if (optimizer) refuse_another_optimizer(checkpoint, state, e, names_of(session->optimizer().rules()));
  load_checkpoint(checkpoint, session->store(), *rank, optimizer);
  load_scales_of_fp8(checkpoint);
  iteration = last_saved = checkpoint.iteration();
  if (clock && state.clock) clock->restore(*state.clock);
  nan_iterations = state.nan_iterations;
  result.loss = state.lm_loss;
  log.info("continuing from {} (iteration {})", checkpoint.folder().string(), iteration);
  const std::vector<SettingChange> changes = changed_settings(state.experiment, experiment_text(e));
  for (const SettingChange& change : changes) {
    if (decides_learning(change.key)) {
      rule_changes.push_back(fmt::format("{} was {}, and is {}", change.key,
                                         change.before.empty() ? "unset" : change.before,
                                         change.after.empty() ? "unset" : change.after));
    }
    const std::string text = fmt::format("{} was {}, and is {} from here on", change.key,
                                         change.before.empty() ? "unset" : change.before,
                                         change.after.empty() ? "unset" : change.after);
    const bool names_data =
        change.key == "data_path" || change.key == "train_data_path" || change.key == "sft_dataset_name";
    const bool renamed = names_data && state.data && data && state.data->fingerprint == data->fingerprint;
    const bool length =
        objective->keeps_order(change.key) || (clock && change.key == "train_minutes" && state.clock);
    change.moves_data && !renamed && !length
        ? log.warning("{}: the data order changes: some samples repeat, others are skipped", text)
        : log.info("{}", text);
  }
  tell_newer_base(state);
  tell_rate(state, changes);
  last_rate = state.learning_rate;
}

// The run that `load` names may have trained on since this one began from it.
void Trainer::Run::tell_newer_base(const TrainerState& state) {
  base = state.base;
  if (base.empty() || !c.load || !Env::posix().status(*c.load)) return;
  const Path now = loaded_folder(*c.load).filename(), then = Path(base).filename();
  if (now == then || !now.string().starts_with("iter_") || !then.string().starts_with("iter_")) return;
  rule_changes.push_back(fmt::format("load had {}, and has {}", then.string(), now.string()));
  log.warning("this run began from {} of load, which has {} now; a new exp_name begins from that",
              then.string(), now.string());
}

void Trainer::Run::tell_rate(const TrainerState& state, const std::vector<SettingChange>& changes) const {
  const auto shapes_rate = [](const SettingChange& change) {
    return change.key.starts_with("lr") || change.key.starts_with("train_") || change.key == "min_lr";
  };
  const bool over = clock ? clock->state().finished : iteration >= c.train_iters;
  if (!state.learning_rate || over || std::ranges::none_of(changes, shapes_rate)) return;
  const double before = *state.learning_rate;
  const double next =
      schedule.learning_rate_at(clock ? clock->place(iteration) : static_cast<double>(iteration));
  constexpr double kJump = 1.25;
  if (std::max(before, next) <= kJump * std::min(before, next)) return;
  log.warning(
      "the learning rate jumps from {:.2e} (iteration {}) to {:.2e} (iteration {}): the schedule spans the "
      "whole run, and its length or its rates have changed; a run that may be trained longer keeps its rate "
      "with "
      "lr_decay_style: WSD (docs/watching.md, Training longer)",
      before, iteration, next, iteration + 1);
}

}  // namespace primus
