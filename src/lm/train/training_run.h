// One training run between its start and its end: what a Trainer holds once it is prepared. Internal to
// lm/train. One thread.
//
// It carries out a RunPlan, with an Evaluator and a Checkpointer. training_plan.cpp and training_start.cpp
// have the way to the first step, training_loop.cpp the steps.
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
#include "lm/train/checkpointer.h"
#include "lm/train/evaluator.h"
#include "lm/train/run_plan.h"
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

struct Trainer::Run : RunPlan, RunProgress {
  using RunPlan::RunPlan;

  void prepare();
  TrainingSummary execute(const std::atomic<bool>& stop);
  // Publishes how the run ended.
  void record_end(const TrainingSummary& summary) const;
  void record_failure(const std::exception& error) const;

  std::vector<std::string> facts;  // what the objective planned, for the log

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
  // The parts of prepare().
  void open_data();
  void tell_data() const;
  void open_rank();
  StepMeasurement measure();
  void open_session();
  void open_monitor();
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
  // Whether a text of this iteration is due and rank 0 has no record of it. All ranks call it alike.
  bool must_sample();
  // A text by the model as it is now, from rank 0. False: `stop` came first, and it is still due.
  bool write_sample(const std::atomic<bool>& stop);
  bool write_own_sample(const std::atomic<bool>& stop, bool together);
  GenerateSettings sample_settings() const;
  // A rank that does not come within three steps is taken for lost.
  void watch_ranks(double step_seconds);
  // The next batch of what is trained or evaluated on. Where the data is broken, what was learned is saved
  // first.
  const data::Batch& next_batch(data::BatchLoader& batches);
  // The last step is asked for first.
  bool evaluate_due(TrainingSummary& summary, const std::atomic<bool>& stop);
  void save();
  void log_choices();
  // Says once that a step was recorded.
  void log_graphs();
  const std::int64_t init_ms = unix_milliseconds();
  std::optional<RunLock> lock;
  std::unique_ptr<engine::Rank> rank;
  std::unique_ptr<RunTrace> trace;  // null: none. Goes before the device that it watches
  std::unique_ptr<TrainingSession> session;
  std::unique_ptr<TrainingMonitor> run_monitor;
  std::unique_ptr<Checkpointer> checkpointer;
  std::unique_ptr<Evaluator> evaluator;
  std::unique_ptr<ThroughputMeter> meter;
  std::int64_t clock_turns = 0;
  std::optional<DevicePeak> peak;  // of rank 0
  std::vector<std::int32_t> sample_prompt;
  std::unique_ptr<data::BatchLoader> loader;
  engine::MemoryPlan memory;
  DeviceProperties device_properties;
  std::int64_t first_iteration = 0;  // completed when this process began
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
};

}  // namespace primus
