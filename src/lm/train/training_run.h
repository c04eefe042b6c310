// One training run between its start and its end: what a Trainer holds once it is prepared. Internal to
// lm/train. One thread.
//
// It carries out a RunPlan with classes that each do one thing: RunLength, Evaluator, Checkpointer, Sampler,
// NanSearch, StepReport. training_start.cpp has the way to the first step, training_loop.cpp the steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/rank.h"
#include "lm/data/batch_loader.h"
#include "lm/events/run_ending.h"
#include "lm/events/run_folder.h"
#include "lm/events/training_monitor.h"
#include "lm/train/checkpointer.h"
#include "lm/train/evaluator.h"
#include "lm/train/nan_search.h"
#include "lm/train/run_length.h"
#include "lm/train/run_plan.h"
#include "lm/train/run_trace.h"
#include "lm/train/sampler.h"
#include "lm/train/step_report.h"
#include "lm/train/trainer.h"

namespace primus {

// Of enable_cuda_graph: why steps run kernel by kernel all the same. Empty: they do not.
inline void warn_without_graphs(Logger& log, const std::string& why) {
  if (!why.empty()) log.warning("enable_cuda_graph: steps are not recorded: {}", why);
}

// Members are built in this order.
struct Trainer::Run {
  // `planned`: what the objective has planned, for the log. The rest is RunPlan's.
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
  // The parts of prepare().
  void lock_folder();
  void record_experiment() const;
  void open_rank();
  // Where the experiment asks this rank for a trace. All ranks call it alike.
  void open_trace();
  StepMeasurement measure();
  void open_session(const StepMeasurement& measured);
  void open_monitor(const StepMeasurement& measured);
  MonitorOptions monitor_options();
  RunFacts run_facts(const StepMeasurement& measured) const;

  // Trains until the run's end, a limit, or `stop`, whose part it returns.
  bool run_steps(TrainingSummary& summary, const std::atomic<bool>& stop, double began);
  // False: `stop` came first, and the step was left without a trace. Ranks that train together end a step
  // together, and leave none.
  bool train_step(const std::atomic<bool>& stop);
  // Waits for the result of the step whose update was enqueued last, if nobody did: refuses to go on with a
  // NaN, and reports the step. A device that works behind the host's back is not waited for before the next
  // step is on its way.
  void finish_step();
  // The next batch of what is trained or evaluated on. Where the data is broken, what was learned is saved
  // first.
  const data::Batch& next_batch(data::BatchLoader& batches);
  // These ask for the last step's result first. False: `stop` came first, and something is still due.
  bool evaluate_due(TrainingSummary& summary, const std::atomic<bool>& stop);
  bool sample_due(const std::atomic<bool>& stop);
  void save();
  // Waits for the kernels and collectives that are on their way.
  void drain();
  // Between steps: begins or ends the trace where it is due.
  void turn_trace();

  bool is_out_of_time(double began) const;
  void interrupt(TrainingSummary& summary, const std::string& by);
  std::string asked() const;  // who asked the run to stop
  // Completes the summary at the end of the run.
  TrainingSummary conclude(TrainingSummary summary, double began);
  // A line about the window of steps that ends with this one, where one does (weight_deosc).
  void log_oscillation();
  void log_choices();
  // Says once that a step was recorded.
  void log_graphs();

  RunPlan plan;
  RunProgress progress;
  RunLength length{plan, progress};
  const std::vector<std::string> facts;
  const std::int64_t init_ms = unix_milliseconds();
  std::optional<RunLock> lock;
  std::unique_ptr<engine::Rank> rank;
  std::unique_ptr<RunTrace> trace;  // null: none. Goes before the device that it watches
  std::unique_ptr<TrainingSession> session;
  std::unique_ptr<TrainingMonitor> run_monitor;
  std::unique_ptr<Checkpointer> checkpointer;
  std::unique_ptr<Evaluator> evaluator;
  std::unique_ptr<Sampler> sampler;
  std::unique_ptr<NanSearch> nan_search;
  std::unique_ptr<StepReport> report;
  std::unique_ptr<data::BatchLoader> loader;
  std::optional<EnqueuedStep> pending;  // a step that was not reported yet
  RankPatience patience;
  bool graphs_logged = false;
};

}  // namespace primus
