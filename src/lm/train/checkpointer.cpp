#include "lm/train/checkpointer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/files/file.h"
#include "base/terminal/terminal.h"
#include "config/keys.h"
#include "config/trainer_config.h"
#include "config/validation/without_effect.h"
#include "lm/data/blend_list.h"
#include "lm/events/line_file.h"
#include "lm/events/metrics_file.h"
#include "lm/events/run_folder.h"
#include "lm/generate/generation_config.h"
#include "lm/model/stated_adapters.h"
#include "lm/train/continued_run.h"
#include "lm/train/forecast/memory_fit.h"
#include "lm/train/job_start.h"
#include "lm/train/settings/base_weights.h"
#include "lm/train/settings/loaded_tokenizer.h"
#include "lm/train/step/fp8_state.h"

namespace primus {
namespace {

// Returns whether a change of this setting affects learning. Other settings only affect how a run is
// monitored and saved.
bool decides_learning(std::string_view key) {
  const config::KeySpec* const spec = config::find_key(key);
  if (spec && (spec->group == "preference" || spec->group == "reinforcement"))
    return !spec->is_no_part_of_training;
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
                             "bf16",
                             "fp8",
                             "fp4",
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

// Returns the experiment that a checkpoint was saved with, or nullopt if this version cannot read it.
std::optional<config::Experiment> recorded_experiment(const TrainerState& state) {
  try {
    return config::load_recorded_experiment(state.experiment, "trainer_state.json");
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Returns the weights of the blend that the run is trained on; empty if the data have no weights.
std::vector<double> weights_of(const config::TrainerConfig& c) {
  return data::parse_blend(c.data_path.empty() ? c.train_data_path : c.data_path).weights;
}

// Logs which adapters were loaded, and warns if they belong to another base model than `load`.
void log_adapters(const RunPlan& plan, const Path& adapters, const Path& load) {
  const MatrixAdapters& loaded = plan.model.lora.by_matrix;
  plan.log.info("adapters loaded from {}: rank {}, {} matrices", adapters.string(), plan.model.lora.dim,
                loaded.matrices.size());
  const std::string warning = warn_of_another_base(adapters, load);
  if (!warning.empty()) plan.log.warning("{}", warning);
}

}  // namespace

Checkpointer::Checkpointer(RunPlan& plan, RunProgress& progress, TrainingSession& session, RunTrace* trace)
    : plan_(plan),
      progress_(progress),
      session_(session),
      rank_(session.rank()),
      trace_(trace),
      root_(checkpoint_root_of(plan.e)),
      reader_(session.rank()),
      snapshots_(plan, session, reader_, plan.c.snapshot_interval > 0) {}

void Checkpointer::open() {
  if (plan_.ranks.first()) {
    make_folders(root_);
    // Several runs may share the folder that `save` names, so it has its own lock.
    if (plan_.c.save)
      lock_.emplace(root_, "wait for it or stop it, or save this run to another folder (save)");
    CheckpointRoot(root_).recover();
    model_files_ = make_model_files();
  }
  const int kept = static_cast<int>(plan_.c.keep_latest);
  writer_ = std::make_unique<AsyncWriter>(
      root_,
      SaveOptions{.keep_last = kept, .group = plan_.ranks.saving_group(), .keep_behind = keep_behind_});
  snapshots_.open();
}

void Checkpointer::set_aside() {
  if (plan_.c.auto_continue_train || !plan_.ranks.first()) return;
  const auto aside = CheckpointRoot(root_).set_aside();
  record_start(root_);
  if (!aside) return;
  plan_.log.warning("auto_continue_train is false: the checkpoints of '{}' were moved to '{}'",
                    root_.string(), aside->string());
}

void Checkpointer::check() {
  writer_->check();
  log_written();
}

ResumePoint Checkpointer::resume_point(const Path& root) const {
  ResumePoint point = find_resume_point(root, Validation::kFull, Env::posix(), plan_.ranks.group());
  for (const std::string& reason : point.rejected) {
    // Rank 0 publishes the warning, which also logs it.
    if (!plan_.ranks.first()) plan_.log.warning("damaged checkpoint skipped: {}", reason);
    progress_.findings.push_back(
        {.detector = "damaged_checkpoint",
         .text = "damaged checkpoint skipped: " + reason,
         .advice =
             "the run continues from an earlier one, and repeats the steps between them; check the disk "
             "for errors"});
  }
  for (const std::string& note : point.notes) {
    plan_.log.warning("{}: {}; the newest good checkpoint is used", root.string(), note);
  }
  return point;
}

void Checkpointer::load_or_initialize() {
  finish_set_aside();
  if (plan_.c.auto_continue_train) {
    if (continue_from_memory()) return;
    const ResumePoint point = resume_point(checkpoint_root_of(plan_.e));
    if (point.reader) {
      continue_run(*point.reader);
      return;
    }
    warn_of_lost_steps();
  }
  if (plan_.c.no_load_optim && (!plan_.c.load || plan_.c.finetune) &&
      config::is_said(plan_.e, "no_load_optim"))
    plan_.log.info("no_load_optim has no effect in this start: it begins with new optimizer states anyway");
  if (!plan_.c.load) {
    session_.store().initialize(rank_.context(), static_cast<std::uint64_t>(plan_.c.seed));
    return;
  }
  session_.store().initialize_new(rank_.context(), static_cast<std::uint64_t>(plan_.c.seed));
  Path load = loaded_root(*plan_.c.load);
  if (Env::posix().status(load / Manifest::kFileName)) {
    const CheckpointReader checkpoint =
        CheckpointReader::open(load, Validation::kFull, Env::posix(), plan_.ranks.group());
    plan_.c.finetune ? finetune_from(checkpoint) : resume_from(checkpoint);
  } else if (Env::posix().status(load / "config.json")) {
    const std::optional<Path> adapters = adapters_to_load(plan_.e);
    load_weights(adapters ? SafetensorsFolder::open_adapted(load, *adapters) : SafetensorsFolder::open(load),
                 session_.store(), rank_, adapters ? Adapters::kRequired : Adapters::kMayBeMissing);
    if (adapters) log_adapters(plan_, *adapters, load);
  } else {
    const ResumePoint point = resume_point(load);
    if (!point.reader) throw nothing_to_load(plan_.e);
    load = point.reader->folder();
    plan_.c.finetune ? finetune_from(*point.reader) : resume_from(*point.reader);
  }
  warn_of_training_base(load);
  progress_.base = load.string();
  progress_.base_weights = identity_of_weights(load);
  plan_.log.info("weights loaded from {}", load.string());
}

void Checkpointer::warn_of_training_base(const Path& checkpoint) const {
  if (!plan_.ranks.first()) return;
  // A run has its checkpoints in RUN/checkpoints/iter_N.
  Path run = checkpoint;
  for (int level = 0; level < 3; ++level, run = run.parent_path()) {
    if (!RunLock::held(run) || std::filesystem::equivalent(run, plan_.folder.root())) continue;
    plan_.log.warning(
        "'{}' is still being trained: this run starts from its checkpoint {}, which that run may delete "
        "(keep_latest). A run with a reference model cannot continue without this checkpoint",
        run.string(), checkpoint.filename().string());
    return;
  }
}

void Checkpointer::warn_of_lost_steps() const {
  if (!plan_.ranks.first()) return;
  std::int64_t reached = 0;
  try {
    reached = iteration_of_line(last_line(plan_.folder.metrics_file()));
  } catch (const Error&) {
    return;  // the records are unreadable, so they do not say how many steps were trained
  }
  if (reached <= 0) return;
  plan_.log.warning(
      "this run had trained {} steps, but '{}' has no checkpoint: it starts from the beginning, and the "
      "earlier "
      "records are kept as metrics.previous.jsonl and so on",
      reached, root_.string());
}

void Checkpointer::continue_run(const CheckpointReader& checkpoint) {
  const TrainerState state = read_trainer_state(checkpoint);
  const std::string warning = check_base_weights(checkpoint, state, plan_.e, checkpoint_root_of(plan_.e));
  if (!warning.empty()) plan_.log.warning("{}", warning);
  progress_.base_weights = state.base_weights;
  resumes_own_ = true;
  resume_from(checkpoint);
  state_from_ = "disk";
}

void Checkpointer::finetune_from(const CheckpointReader& checkpoint) {
  refuse_another_model(checkpoint, plan_.e, plan_.model, plan_.settings.compute, plan_.families,
                       Start::kFinetuned);
  const std::optional<Path> adapters = adapters_to_load(plan_.e);
  if (!adapters) return load_checkpoint(checkpoint, session_.store(), rank_, false, Adapters::kMayBeMissing);
  load_weights(SafetensorsFolder::open_adapted(checkpoint.folder(), *adapters), session_.store(), rank_,
               Adapters::kRequired);
  log_adapters(plan_, *adapters, *plan_.c.load);
}

void Checkpointer::load_scales_of_fp8(const CheckpointReader& checkpoint) {
  const engine::DelayedScales* const scales = session_.scales();
  if (!scales) return;
  if (plan_.c.no_load_optim) return plan_.log.warning("no_load_optim: the fp8 scales start at 1");
  const LoadedScales count = load_scales(checkpoint, *scales, rank_);
  if (count.missing == 0) return;
  plan_.log.warning("{} has no fp8 scales (fp8_recipe: delayed) for {} of {} linear layers: they start at 1",
                    checkpoint.folder().string(), count.missing, count.missing + count.loaded);
}

void Checkpointer::restore_rule(const CheckpointReader& checkpoint, bool has_states) {
  LossRule* const rule = session_.rule();
  if (!rule || !has_states) return;
  const std::string warning = rule->restore(session_, checkpoint);
  if (!warning.empty()) plan_.log.warning("{}", warning);
}

void Checkpointer::resume_from(const CheckpointReader& checkpoint) {
  const TrainerState state = read_trainer_state(checkpoint);
  const std::optional<InputIdentity> data = plan_.data_identity();
  const ResumedParts run{.experiment = plan_.e,
                         .model = plan_.model,
                         .settings = plan_.settings,
                         .families = plan_.families,
                         .tokenizer = plan_.tokenizer_identity(),
                         .data = data};
  for (const std::string& warning : compare_with_checkpoint(checkpoint, state, run))
    plan_.log.warning("{}", warning);
  if (has_other_data(state, data) && plan_.datasets.valid && plan_.datasets.held_out) {
    plan_.log.warning(
        "the validation data is a part of the changed data: validation losses from here on are of other data "
        "than before, and data that was held out before may now be trained on");
  }
  const bool optimizer = !plan_.c.no_load_optim && has_optimizer_state(checkpoint);
  if (!optimizer && !plan_.c.no_load_optim) {
    plan_.log.warning("{} has no optimizer state (no_save_optim): the moments start at zero",
                      checkpoint.folder().string());
  }
  if (!optimizer && session_.has_second()) {
    plan_.log.warning(
        "the value model is stored with the optimizer states, which are not loaded: it starts from its first "
        "weights again");
  }
  load_checkpoint(checkpoint, session_.store(), rank_, optimizer);
  load_scales_of_fp8(checkpoint);
  restore_rule(checkpoint, optimizer);
  last_saved_ = checkpoint.iteration();
  restore_progress(state, checkpoint);
}

bool Checkpointer::keeps_samples(std::int64_t train_iters) const {
  if (train_iters == 0 || progress_.clock || !plan_.datasets.train) return false;
  config::Experiment before = plan_.e;
  before.trainer->train_iters = train_iters;
  before.trainer->eval_iters = 0;
  const DataRequest request = plan_.data_request();
  const DataRequest old{.experiment = before,
                        .tokenizer = request.tokenizer,
                        .progress = request.progress,
                        .cyclic = request.cyclic};
  try {
    const data::Datasets datasets = plan_.objective->open(old);
    const data::Dataset &a = *plan_.datasets.train, &b = *datasets.train;
    const std::int64_t shorter = std::min(train_iters, plan_.c.train_iters) * plan_.c.global_batch_size;
    const std::int64_t count = std::min({shorter, a.size(), b.size()});
    constexpr std::int64_t kPlaces = 64;
    const auto length = static_cast<std::size_t>(a.seq_length());
    std::vector<std::int32_t> of_a(length + 1), of_b(length + 1);
    std::vector<float> mask(length);
    for (std::int64_t i = 0; i < std::min(kPlaces, count); ++i) {
      const std::int64_t place = count <= kPlaces ? i : (count - 1) * i / (kPlaces - 1);
      a.sample(place, of_a, mask);
      b.sample(place, of_b, mask);
      if (of_a != of_b) return false;
    }
    return true;
  } catch (const Error&) {
    return false;  // counts as a difference, so that the user is warned
  }
}

void Checkpointer::log_changes(bool over) {
  if (!resumed_) return;
  const TrainerState& state = *resumed_;
  const std::optional<InputIdentity> data = plan_.data_identity();
  const std::vector<SettingChange> changes = changed_settings(state.experiment, experiment_text(plan_.e));
  const std::optional<config::Experiment> before = recorded_experiment(state);
  const auto matters = [&](const config::KeySpec& key) {
    return config::has_effect(key, plan_.c) || (before && config::has_effect(key, before->trainer));
  };
  std::optional<bool> same_samples;  // whether a run of another length reads the same samples
  for (const SettingChange& change : changes) {
    const std::string values =
        fmt::format("{} was {}, and is {}", change.key, change.before.empty() ? "unset" : change.before,
                    change.after.empty() ? "unset" : change.after);
    const config::KeySpec* const key = config::find_key(change.key);
    // If only one experiment states the setting, the other has it from the loaded model.
    // refuse_another_model() has already compared both models.
    if (key && key->describes_model() && plan_.c.load && (change.before.empty() || change.after.empty()))
      continue;
    // A run that starts from another run's checkpoint does what both keys ask for.
    if (!resumes_own_ && (change.key == "load" || change.key == "finetune")) continue;
    if (key && !matters(*key)) {
      plan_.log.info("{}, which has no effect", values);
      continue;
    }
    if (change.key == "moe_expert_rounds" &&
        plan_.settings.model.moe.training.rounds == state.expert_rounds) {
      plan_.log.info("{}: the run has {} rounds, as before", values, state.expert_rounds);
      continue;
    }
    const bool learns = decides_learning(change.key) || (over && change.moves_data);
    if (learns) progress_.rule_changes.push_back(values);
    // A finished run trains no step, but it may still run an evaluation or write samples.
    if (over && !learns) plan_.log.info("{}", values);
    if (over) continue;
    const bool starts_only = change.key == "init_method_std" || change.key == "finetune";
    const std::string text =
        values + (change.key == "load" ? "; the trained weights come from the run's own checkpoint"
                  : starts_only        ? "; a resumed run ignores it"
                                       : " from here on");
    const bool names_data =
        change.key == "data_path" || change.key == "train_data_path" || change.key == "sft_dataset_name";
    // The fingerprint does not cover the weights of a blend, which affect the data order.
    const bool renamed = names_data && state.data && data && !has_other_data(state, data) && before &&
                         weights_of(before->trainer) == weights_of(plan_.c);
    constexpr auto kOfTokenizer =
        std::to_array<std::string_view>({"tokenizer_model", "tokenizer_type", "vocab_file", "merge_file"});
    const bool moved_tokenizer = std::ranges::find(kOfTokenizer, change.key) != kOfTokenizer.end() &&
                                 state.tokenizer && !has_other_tokenizer(state, plan_.tokenizer_identity());
    bool keeps = renamed || moved_tokenizer || plan_.objective->keeps_order(change.key) ||
                 (progress_.clock && change.key == "train_minutes" && state.clock);
    if (change.moves_data && !keeps && change.key.starts_with("train_") && !names_data) {
      // The comparison opens the data of the former length, so only one rank makes the comparison and logs
      // the change.
      if (!plan_.ranks.first()) continue;
      if (!same_samples) same_samples = !state.clock && keeps_samples(state.train_iters);
      keeps = *same_samples;
    }
    const std::string_view evaluates =
        change.key == "split"
            ? "; validation losses from here on are of other data than before, and data that was held out "
              "before may now be trained on"
            : "";
    if (change.key == "reward" || change.key == "reward_weights") {
      plan_.log.warning("{}: rewards before and after this step are not comparable", text);
      continue;
    }
    change.moves_data && !keeps
        ? plan_.log.warning("{}: the data order changes: some samples repeat, others are skipped{}", text,
                            evaluates)
        : plan_.log.info("{}", text);
  }
  if (!over) log_rate(state, changes);
  if (over && has_other_data(state, data) && state.data->name == data->name)
    progress_.rule_changes.push_back(fmt::format("the content of '{}' has changed", data->name));
}

// Logs a note if the run that `load` names has newer checkpoints than the start of this run.
void Checkpointer::log_newer_base(const TrainerState& state) {
  progress_.base = state.base;
  if (progress_.base.empty() || !plan_.c.load || !Env::posix().status(*plan_.c.load)) return;
  const Path folder = loaded_folder(*plan_.c.load), base = progress_.base;
  using std::filesystem::weakly_canonical;
  if (weakly_canonical(folder.parent_path()) != weakly_canonical(base.parent_path())) return;
  const Path now = folder.filename(), then = base.filename();
  if (now == then || !now.string().starts_with("iter_") || !then.string().starts_with("iter_")) return;
  progress_.rule_changes.push_back(fmt::format("load changed from {} to {}", then.string(), now.string()));
  plan_.log.warning(
      "this run started from {} of load, which now has {}; to start from that, use a new exp_name",
      then.string(), now.string());
}

void Checkpointer::log_rate(const TrainerState& state, const std::vector<SettingChange>& changes) const {
  const auto shapes_rate = [](const SettingChange& change) {
    return change.key.starts_with("lr") || change.key.starts_with("train_") || change.key == "min_lr";
  };
  if (!state.learning_rate || std::ranges::none_of(changes, shapes_rate)) return;
  const double before = *state.learning_rate;
  const double next =
      plan_.schedule.learning_rate_at(progress_.clock ? progress_.clock->place(progress_.iteration)
                                                      : static_cast<double>(progress_.iteration));
  constexpr double kJump = 1.25;
  if (std::max(before, next) <= kJump * std::min(before, next)) return;
  plan_.log.warning(
      "the learning rate jumps from {:.2e} (iteration {}) to {:.2e} (iteration {}): the schedule spans the "
      "whole run, and the run's length or rates have changed; to train longer without a jump, use "
      "lr_decay_style: WSD (docs/watching.md, Training longer)",
      before, progress_.iteration, next, progress_.iteration + 1);
}

std::optional<std::string> Checkpointer::newest() const {
  const CheckpointRoot checkpoints(checkpoint_root_of(plan_.e));
  const auto saved = checkpoints.latest();
  return saved ? std::optional(checkpoints.folder(*saved).string()) : std::nullopt;
}

std::vector<Snapshot::Blob> Checkpointer::make_model_files() const {
  std::vector<Snapshot::Blob> files{
      {"config.json", write_model_config(plan_.model, plan_.settings.compute, plan_.families)}};
  // The sampling settings of the loaded model still apply.
  constexpr const char* kGeneration = "generation_config.json";
  const Path loaded = plan_.c.load ? loaded_folder(*plan_.c.load) : Path();
  if (plan_.c.load && Env::posix().status(loaded / kGeneration)) {
    constexpr std::uint64_t kLimit = 1 << 20;
    std::string text = read_file(loaded / kGeneration, kLimit);
    if (replaces_loaded_tokenizer(plan_.e, *plan_.tokenizer))
      text = with_special_ids(text, (loaded / kGeneration).string(), plan_.model);
    files.push_back({kGeneration, std::move(text)});
  }
  // The tokenizer belongs to the model folder; kinds without a Hugging Face format (null, byte) are skipped.
  const Path scratch = plan_.folder.root() / ".tokenizer";
  remove_tree(scratch);
  try {
    make_folders(scratch);
    plan_.tokenizer->save(scratch);
    for (const std::string& name : Env::posix().list(scratch))
      files.push_back({name, read_file(scratch / name)});
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
  }
  remove_tree(scratch);
  plan_.objective->finish_model_files(plan_.data_request(), plan_.model, files);
  return files;
}

void Checkpointer::agree_on_clock() {
  if (!progress_.clock) return;
  const double now = monotonic_seconds();
  progress_.clock->set_seconds(
      1e-6 * static_cast<double>(plan_.ranks.from_first(std::llround(1e6 * progress_.clock->seconds(now)))),
      now);
}

std::string Checkpointer::trainer_state() const {
  const bool is_cyclic = plan_.objective->depends_on_ranks(plan_.c);
  return write_trainer_state(
      {.iteration = progress_.iteration,
       .consumed_samples = progress_.iteration * plan_.c.global_batch_size,
       .global_batch_size = plan_.c.global_batch_size,
       .seed = plan_.c.seed,
       .nan_iterations = progress_.nan_iterations,
       .lm_loss = progress_.result.loss,
       .train_iters = progress_.total_steps(plan_.c),
       .clock = progress_.clock ? std::optional(progress_.clock->state()) : std::nullopt,
       .learning_rate = progress_.last_rate,
       .cyclic_ranks = is_cyclic ? plan_.cyclic_order.dp_size : 0,
       .cyclic_micro_batch_size = is_cyclic ? plan_.cyclic_order.micro_batch_size : 0,
       .experiment = experiment_text(plan_.e),
       .optimizer = names_of(session_.optimizer().rules()),
       .base = progress_.base,
       .base_weights = progress_.base_weights,
       .tokenizer = plan_.tokenizer_identity(),
       .data = plan_.data_identity(),
       .good_checks = progress_.good_checks,
       .expert_rounds = shares_experts(plan_.c, plan_.model) ? plan_.settings.model.moe.training.rounds : 0});
}

void Checkpointer::save() {
  if (last_saved_ == progress_.iteration) return;
  agree_on_clock();
  const comm::Activity busy = plan_.ranks.busy("saving a checkpoint");
  const RunTrace::HostWork saved(trace_, "begin a checkpoint");
  const double began = monotonic_seconds();
  rank_.synchronize();
  plan_.monitor->sync();
  Snapshot snapshot;
  snapshot.iteration = progress_.iteration;
  snapshot.files = model_files_;
  snapshot.trainer_state = trainer_state();
  snapshot.model = model_sources(session_.store(), reader_);
  if (!plan_.c.no_save_optim) {
    snapshot.optimizer = optimizer_sources(session_.store(), reader_);
    if (const engine::DelayedScales* const scales = session_.scales()) {
      for (TensorSource& source : scale_sources(*scales, rank_, reader_))
        snapshot.optimizer.push_back(std::move(source));
    }
    if (LossRule* const rule = session_.rule()) {
      for (TensorSource& source : rule->state(session_, progress_.iteration))
        snapshot.optimizer.push_back(std::move(source));
    }
  }
  using Sources = AsyncWriter::Sources;
  const Sources changing = rank_.device().properties().host_memory ? Sources::kLive : Sources::kOnDevice;
  // Without async_save, the run waits for the files. The tensors then do not change during the save, so no
  // copy is needed.
  writer_->save(std::move(snapshot), plan_.c.async_save ? changing : Sources::kStable);
  last_saved_ = progress_.iteration;
  log_written();  // the previous checkpoint became durable during the wait for the writer
  plan_.monitor->checkpoint(progress_.iteration, CheckpointFacts::State::kSaving);
  if (!plan_.c.async_save) writer_->wait();
  plan_.log.info("saving iteration {}: training paused {:.1f} ms", progress_.iteration,
                 1e3 * (monotonic_seconds() - began));
}

void Checkpointer::log_written() {
  const std::optional<std::int64_t> saved = writer_->last_saved();
  if (!saved || std::exchange(last_logged_, *saved) == *saved) return;
  plan_.monitor->checkpoint(*saved, CheckpointFacts::State::kDurable);
  const WrittenBytes written = writer_->last_written();
  plan_.log.debug("iteration {} is saved: {} of this rank's {} of tensors bypassed the page cache", *saved,
                  human_bytes(static_cast<double>(written.direct)),
                  human_bytes(static_cast<double>(written.all)));
}

}  // namespace primus
