// One training run between its start and its end: what a Trainer holds once it is prepared. Internal to
// lm/train. One thread.
//
// training_start.cpp has the way to the first step, training_loop.cpp the steps and evaluations, and
// training_save.cpp the checkpoints.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/rank.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/data/batch_loader.h"
#include "lm/data/cyclic_dataset.h"
#include "lm/data/dataset.h"
#include "lm/events/device_peak.h"
#include "lm/events/run_ending.h"
#include "lm/events/run_folder.h"
#include "lm/events/training_monitor.h"
#include "lm/generate/generate.h"
#include "lm/model/weights.h"
#include "lm/optimizer/schedule.h"
#include "lm/train/job_ranks.h"
#include "lm/train/objectives/objective.h"
#include "lm/train/resume.h"
#include "lm/train/run_trace.h"
#include "lm/train/trainer.h"
#include "lm/train/training_clock.h"
#include "lm/train/training_settings.h"

namespace primus {

// Of enable_cuda_graph: why steps run kernel by kernel all the same. Empty: they do not.
inline void warn_without_graphs(Logger& log, const std::string& why) {
  if (!why.empty()) log.warning("enable_cuda_graph: steps are not recorded: {}", why);
}

// What the checkpoint says that a run of this experiment goes on from: its own newest one, or without one
// that of `load`. Nothing where the run begins anew.
std::optional<TrainerState> continued_state(const config::Experiment& experiment);

// One run from start to end; its members are built in this order.
struct Trainer::Run {
  Run(std::unique_ptr<Objective> run_objective, const config::Experiment& experiment,
      const FamilyRegistry& registry, Logger& logger, const TrainerOptions& run_options,
      std::vector<std::string> notes)
      : objective(std::move(run_objective)),
        model_notes(std::move(notes)),
        e(with_loaded_model(experiment, registry, &model_notes)),
        c(e.trainer),
        options(run_options),
        log(logger),
        ranks(run_options.job),
        families(registry),
        folder(run_folder_of(e)),
        tokenizer(tokenizer_of(e, &model_notes)),
        model(model_of(e, registry, tokenizer.get(), &model_notes)),
        shape(mesh_shape_of(e, ranks.size())),
        place(engine::place_of(shape, ranks.size(), ranks.rank())),
        settings(session_settings_of(e, model, ranks.size())),
        schedule(c, starts_from_weights(c)) {}

  void prepare();
  TrainingSummary execute(const std::atomic<bool>& stop);
  // Publishes how the run ended.
  void record_end(const TrainingSummary& summary) const;
  void record_failure(const std::exception& error) const;

  const std::int64_t init_ms = unix_milliseconds();
  const std::unique_ptr<Objective> objective;
  std::vector<std::string> model_notes, facts;
  config::Experiment e;  // with what loaded models, data and time decide
  const config::TrainerConfig& c;
  TrainerOptions options;
  Logger& log;
  JobRanks ranks;
  const FamilyRegistry& families;
  RunFolder folder;
  std::unique_ptr<const Tokenizer> tokenizer;
  std::optional<double> bytes_per_token;  // of the validation text, on the first rank
  ModelConfig model;
  engine::MeshShape shape;
  engine::MeshPlace place;  // this rank's
  SessionSettings settings;
  Schedule schedule;

 private:
  void lock_folder();
  // The device this rank trains on: of several GPUs on a host, each rank takes its own.
  DeviceSpec choose_device(std::vector<std::string>* notes = nullptr) const;
  // Refuse ranks that would not train the same: before the first thing that ranks do together, and when the
  // data is open.
  void compare_experiments();
  void compare_data();
  void record_experiment() const;
  // The steps of train_epochs and train_minutes.
  void plan_length();
  // With train_minutes: the clock of the run, which goes on where its checkpoint has it. All ranks call it
  // alike.
  void plan_time();
  // Of the run that this one goes on from; nothing where it begins anew. Without planned steps where that run
  // counted steps and no time: `seconds` are then those steps. Reads a checkpoint.
  std::optional<ClockState> continued_clock() const;
  // How cyclic data is ordered: as the run that this one goes on from had it, on however many ranks. All
  // ranks call it alike.
  data::CyclicOptions choose_cyclic_order();
  // Seconds of a step, timed before the first one. All ranks call it alike.
  double time_steps();
  // The place in the schedule of the step that comes, in steps, as rank 0 has it; with train_minutes that is
  // a question of time, and decides whether the step is the last. All ranks call it alike.
  double schedule_position();
  // Steps of the run: with train_minutes as estimated now.
  std::int64_t total_steps() const;
  // Seconds that the run takes behind its last step, about.
  double seconds_at_end() const;
  data::TokenizeProgressFn tokenize_progress() const;
  DataRequest data_request() const;
  void open_data();
  InputIdentity tokenizer_identity() const;
  std::optional<InputIdentity> data_identity() const;  // empty: nothing is trained on
  // Where a run that starts from weights has so few steps that it hardly learns.
  void warn_of_few_steps() const;
  void check_memory(const StepMeasurement& measured);
  // Of rank 0: whether a checkpoint fits where it will be saved.
  void check_disk(const StepMeasurement& measured) const;
  MonitorOptions monitor_options();
  RunFacts run_facts(const StepMeasurement& measured) const;
  void measure_peak();
  // What samples begin with: the experiment's prompt, or whole words near the beginning of data.
  std::vector<std::int32_t> find_sample_prompt() const;
  // Publishes what is being done.
  void phase(std::string_view what, std::optional<double> share = {}) const;
  // The newest good checkpoint in `root`; damaged ones are named in the log.
  ResumePoint resume_point(const Path& root) const;
  void load_or_initialize();
  void resume_from(const CheckpointReader& checkpoint);
  void finetune_from(const CheckpointReader& checkpoint);
  // Says that the run behind `load` has trained on since this one began.
  void tell_newer_base(const TrainerState& state);
  // Says where the changed settings make the rate jump.
  void tell_rate(const TrainerState& state, const std::vector<SettingChange>& changes) const;
  // Says for how many layers the checkpoint has none. With a recipe that has delayed scales, else nothing.
  void load_scales_of_fp8(const CheckpointReader& checkpoint);
  // Where the experiment asks this rank for a trace. All ranks call it alike.
  void open_trace();
  // Between steps: begins or ends the trace where it is due.
  void turn_trace();
  // Waits for the kernels and collectives that are on their way.
  void drain();
  // Trains until the run's end, a limit, or `stop`, whose part it returns.
  bool run_steps(TrainingSummary& summary, const std::atomic<bool>& stop, double began);
  bool is_out_of_time(double began) const;
  void interrupt(TrainingSummary& summary, const std::string& by);
  std::string asked() const;  // who asked the run to stop
  // What is known at the end of the run.
  TrainingSummary conclude(TrainingSummary summary, double began);
  // False: `stop` came first, and the step was left without a trace. Ranks that train together end a step
  // together, and leave none.
  bool train_step(const std::atomic<bool>& stop);
  // Waits for the result of the step whose update was enqueued last, if nobody did: refuses to go on with a
  // NaN, and reports the step. A device that works behind the host's back is not waited for before the next
  // step is on its way.
  void finish_step();
  // A line about the window of steps that ends with this one, where one does (weight_deosc).
  void log_oscillation();
  // Whether rank 0 has no record of this evaluation.
  bool must_evaluate(const char* data_set);
  // Evaluates what is due after this iteration and has no record yet: an earlier process may have been
  // stopped before it did. False: `stop` came first, and something is still due.
  bool evaluate_due(TrainingSummary& summary, const std::atomic<bool>& stop);
  // Empty: `stop` came first.
  std::optional<double> evaluate(const data::Dataset& dataset, const char* name, std::int64_t first_sample,
                                 const std::atomic<bool>& stop);
  // Where an evaluation after this iteration has reached target_eval_loss, the run ends with this iteration.
  // Rank 0 decides by its record, of this or an earlier process. All ranks call it alike.
  void end_at_target();
  // Whether a text of this iteration is due and rank 0 has no record of it. All ranks call it alike.
  bool must_sample();
  // A text by the model as it is now, from rank 0. False: `stop` came first, and it is still due.
  bool write_sample(const std::atomic<bool>& stop);
  bool write_own_sample(const std::atomic<bool>& stop, bool together);
  GenerateSettings sample_settings() const;
  // A rank that does not come within three steps is taken for lost.
  void watch_ranks(double step_seconds);
  // `samples`: those whose learned labels have one mean, where calculate_per_token_loss asks for that.
  data::BatchLoaderOptions loader_options(std::int64_t first_sample, std::int64_t samples) const;
  // The next batch of what is trained or evaluated on. Where the data is broken, what was learned is saved
  // first.
  const data::Batch& next_batch(data::BatchLoader& batches);
  std::optional<std::string> newest_checkpoint() const;
  void save();
  // Says once of each checkpoint that is durable how it was written.
  void log_written();
  void log_choices();
  // Says once that a step was recorded.
  void log_graphs();
  std::vector<Snapshot::Blob> make_model_files() const;
  std::string trainer_state() const;

  std::optional<RunLock> lock, checkpoints_lock;
  data::Datasets datasets;
  std::unique_ptr<engine::Rank> rank;
  std::unique_ptr<RunTrace> trace;  // null: none. Goes before the device that it watches
  std::unique_ptr<TrainingSession> session;
  std::unique_ptr<DeviceReader> reader;
  std::unique_ptr<AsyncWriter> writer;  // after what its sources read
  std::unique_ptr<TrainingMonitor> monitor;
  std::unique_ptr<ThroughputMeter> meter;
  std::optional<TrainingClock> clock;  // with train_minutes
  std::int64_t clock_turns = 0;
  double evaluation_seconds = 0;   // of the last one on validation data
  std::optional<DevicePeak> peak;  // of rank 0
  std::vector<std::int32_t> sample_prompt;
  std::unique_ptr<data::BatchLoader> loader;
  engine::MemoryPlan memory;
  DeviceProperties device_properties;
  std::int64_t iteration = 0;  // steps whose update is enqueued
  // The run ends with it: train_iters, or where it reached its target, or where its time is over.
  std::int64_t last_iteration = 0;
  static constexpr std::int64_t kNoLastIteration = std::numeric_limits<std::int64_t>::max();
  bool target_reached = false;
  std::int64_t first_iteration = 0;  // completed when this process began
  std::int64_t last_saved = -1, last_logged_save = -1;
  std::int64_t nan_iterations = 0;
  std::optional<double> last_rate;  // the learning rate of the last step, of an earlier process too
  std::string base;  // the folder of the weights that the run began from; empty: it began from nothing
  std::vector<std::string> rule_changes;  // since that process: settings that decide what is learned
  data::CyclicOptions cyclic_order;
  std::vector<Snapshot::Blob> model_files;  // of every checkpoint, beside the weights
  // A step that is on its way, or done, and was not reported yet.
  struct Pending {
    std::int64_t iteration = 0;
    double learning_rate = 0;
    double began = 0, data_wait_seconds = 0;
  };
  std::optional<Pending> pending;
  bool graphs_logged = false;
  RankPatience patience;
  double last_step_ended = 0;
  StepResult result;  // of the last step that was reported
};

// Seconds of a clock that only goes forward.
double monotonic_seconds();

}  // namespace primus
