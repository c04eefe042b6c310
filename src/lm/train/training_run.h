// A training run from start to end: the state of a prepared Trainer. Internal to lm/train. Not thread-safe.
//
// A run carries out a RunPlan with one class per task: RunLength, Evaluator, Checkpointer, Sampler,
// NanSearch, StepReport. training_start.cpp prepares the first step; training_loop.cpp runs the steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/runtime/rank.h"
#include "lm/data/batch_loader.h"
#include "lm/events/run_ending.h"
#include "lm/events/run_folder.h"
#include "lm/events/training_monitor.h"
#include "lm/train/checkpointer.h"
#include "lm/train/corruption/corruption_watch.h"
#include "lm/train/evaluator.h"
#include "lm/train/nan_search.h"
#include "lm/train/run_length.h"
#include "lm/train/run_plan.h"
#include "lm/train/run_trace.h"
#include "lm/train/sampler.h"
#include "lm/train/step_report.h"
#include "lm/train/trainer.h"
#include "turbo/devices/work_device.h"

namespace primus {

// With enable_cuda_graph: logs a warning if steps run kernel by kernel. `why`: the reason; empty if steps are
// recorded.
inline void warn_without_graphs(Logger& log, const std::string& why) {
  if (!why.empty()) log.warning("enable_cuda_graph: steps are not recorded: {}", why);
}

// Members are initialized in this order.
struct Trainer::Run {
  // `planned`: sentences from the objective's plan, for the log. See RunPlan for the other arguments.
  Run(std::unique_ptr<Objective> objective, const config::Experiment& experiment,
      const FamilyRegistry& registry, Logger& log, const TrainerOptions& options,
      std::vector<std::string> notes, std::vector<std::string> planned)
      : plan(std::move(objective), experiment, registry, log, options, std::move(notes)),
        facts(std::move(planned)) {}

  void prepare();
  TrainingSummary execute(const std::atomic<bool>& stop);
  // Publishes how the run ended.
  void record_end(const TrainingSummary& summary) const;
  void record_failure(const std::exception& error) const;

 private:
  // The following functions are parts of prepare().
  void lock_folder();
  void record_experiment() const;
  void open_rank();
  // Creates the trace if the experiment requests one from this rank. All ranks must call this function.
  void open_trace();
  StepMeasurement measure();
  void open_session(const StepMeasurement& measured);
  void open_monitor(const StepMeasurement& measured);
  // Publishes the begin of training, then the findings of the start.
  void publish_start(const StepMeasurement& measured);
  MonitorOptions monitor_options();
  RunFacts run_facts(const StepMeasurement& measured) const;

  // Trains until the end of the run, a limit, or a stop request. Returns whether a stop request ended the
  // run.
  bool run_steps(TrainingSummary& summary, const std::atomic<bool>& stop, double began);
  // Trains one step. Returns false if `stop` was set and the step was therefore abandoned without effect.
  // Ranks that train together always complete a step.
  bool train_step(const std::atomic<bool>& stop);
  // Enqueues the microbatches of the next step. `batches`: already read batches; empty: they are read
  // one by one. Throws StopRequest if `stop` was set. Ranks that train together always complete a step.
  void run_passes(const std::atomic<bool>& stop, const std::vector<data::Batch>& batches,
                  std::int64_t microbatches);
  // Computes the step whose gradients are finished again, and compares the bits of both computations.
  void replay_step(const std::atomic<bool>& stop, const std::vector<data::Batch>& batches,
                   std::int64_t microbatches);
  // Ends the step whose passes are enqueued: publishes the previous step, and enqueues the update. `step`:
  // the step's number, begin and waits.
  void update_weights(EnqueuedStep step);
  // Begins to watch this rank's machine.
  void watch_machine() const;
  // Publishes what the watch of this rank's machine has found.
  void report_findings() const;
  // Reads the result of the last enqueued step, unless it was already read, and reports the step. Throws
  // after a NaN. On an asynchronous device, this function is called only after the next step has been
  // enqueued.
  void finish_step();
  // Returns the next batch for training or evaluation. If the data is broken, saves the model before
  // throwing.
  const data::Batch& next_batch(data::BatchLoader& batches);
  // The following functions first read the last step's result. The functions return false if `stop` was set
  // before the work was complete. The work then remains due.
  bool evaluate_due(TrainingSummary& summary, const std::atomic<bool>& stop);
  bool sample_due(const std::atomic<bool>& stop);
  void save();
  // Takes a snapshot in memory, if one is due.
  void take_snapshot();
  // Waits until all kernels and collectives have ended.
  void drain();
  // Begins or ends the trace between steps, if it is due to begin or end.
  void turn_trace();

  bool is_out_of_time(double began) const;
  void interrupt(TrainingSummary& summary, const std::string& by);
  std::string asked() const;  // Returns the source of the stop request, such as "SIGTERM".
  // Completes the summary at the end of the run.
  TrainingSummary conclude(TrainingSummary summary, double began);
  // If a window of weight_deosc ends with this step, logs one line about oscillating weights.
  void log_oscillation();
  // Records some answers of the last step for samples.jsonl (log_completions).
  void record_answers();
  void log_choices();
  // Logs once that a step was recorded.
  void log_graphs();

  RunPlan plan;
  RunProgress progress;
  RunLength length{plan, progress};
  const std::vector<std::string> facts;
  const std::int64_t init_ms = unix_milliseconds();
  std::optional<RunLock> lock;
  std::optional<RunEnding> earlier;  // how the folder's previous process ended; set only on the first rank
  std::unique_ptr<engine::Rank> rank;
  std::unique_ptr<RunTrace> trace;  // trace, or null; declared before the device, which it must outlive
  std::unique_ptr<TrainingSession> session;
  std::unique_ptr<TrainingMonitor> run_monitor;
  std::unique_ptr<Checkpointer> checkpointer;
  std::unique_ptr<Evaluator> evaluator;
  std::unique_ptr<Sampler> sampler;
  // Search for wrong numbers.
  struct Checks {
    std::unique_ptr<NanSearch> nan;
    std::unique_ptr<CorruptionWatch> corruption;
  };
  Checks checks;
  std::unique_ptr<StepReport> report;
  std::unique_ptr<data::BatchLoader> loader;
  std::optional<EnqueuedStep> pending;  // a step that has not been reported yet
  // Times of this rank, compared with other ranks' times. Declared after the rank, because the meter's
  // events must be destroyed before the device.
  struct Times {
    RankPatience patience;
    std::shared_ptr<turbo::WorkMeter> meter;  // null: the device's work is not measured
  };
  Times times;
  bool graphs_logged = false;
};

}  // namespace primus
