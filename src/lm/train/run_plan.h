// RunPlan: everything that a run decides before its first step, and only reads afterwards: the experiment
// with what data, weights and time decide, the ranks, the data. And RunProgress: how far the run has come.
// Internal to lm/train. One thread.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/mesh.h"
#include "lm/data/batch_loader.h"
#include "lm/data/cyclic_dataset.h"
#include "lm/data/dataset.h"
#include "lm/events/run_folder.h"
#include "lm/events/training_monitor.h"
#include "lm/optimizer/schedule.h"
#include "lm/train/job_ranks.h"
#include "lm/train/objectives/objective.h"
#include "lm/train/resume.h"
#include "lm/train/trainer.h"
#include "lm/train/training_clock.h"
#include "lm/train/training_settings.h"

namespace primus {

// Members are built in this order.
struct RunPlan {
  RunPlan(std::unique_ptr<Objective> run_objective, const config::Experiment& experiment,
          const FamilyRegistry& registry, Logger& logger, const TrainerOptions& run_options,
          std::vector<std::string> notes);

  // The device this rank trains on: of several GPUs on a host, each rank takes its own.
  DeviceSpec choose_device(std::vector<std::string>* notes = nullptr) const;
  // Publishes what is being done, and how much of it.
  void phase(std::string_view what, std::optional<double> share = {}) const;
  data::TokenizeProgressFn tokenize_progress() const;
  DataRequest data_request() const;
  InputIdentity tokenizer_identity() const;
  std::optional<InputIdentity> data_identity() const;  // empty: nothing is trained on
  // `samples`: those whose learned labels have one mean, where calculate_per_token_loss asks for that.
  data::BatchLoaderOptions loader_options(std::int64_t first_sample, std::int64_t samples) const;

  const std::unique_ptr<Objective> objective;
  std::vector<std::string> model_notes;
  config::Experiment e;
  const config::TrainerConfig& c;
  const TrainerOptions options;
  Logger& log;
  JobRanks ranks;
  const FamilyRegistry& families;
  const RunFolder folder;
  const std::unique_ptr<const Tokenizer> tokenizer;
  const ModelConfig model;
  const engine::MeshShape shape;
  const engine::MeshPlace place;  // this rank's
  SessionSettings settings;
  Schedule schedule;

  data::CyclicOptions cyclic_order;
  std::int64_t timed_steps = 0;  // DataRequest::timed_steps
  data::Datasets datasets;
  TrainingMonitor* monitor = nullptr;  // null: before the run has a folder
};

struct RunProgress {
  std::int64_t iteration = 0;        // steps whose update is enqueued
  std::int64_t first_iteration = 0;  // completed when this process began
  // The run ends with it: train_iters, or where it reached its target, or where its time is over.
  std::int64_t last_iteration = 0;
  static constexpr std::int64_t kNoLastIteration = std::numeric_limits<std::int64_t>::max();
  std::int64_t nan_iterations = 0;
  std::optional<double> last_rate;  // the learning rate of the last step, of an earlier process too
  StepResult result;                // of the last step that was reported
  std::string base;  // the folder of the weights that the run began from; empty: it began from nothing
  std::optional<InputIdentity> base_weights;  // of that folder, when the run began
  std::vector<std::string> rule_changes;  // since the process before: settings that decide what is learned
  std::optional<TrainingClock> clock;     // with train_minutes

  // Steps of the run: with train_minutes as estimated now.
  std::int64_t total_steps(const config::TrainerConfig& c) const {
    if (!clock) return c.train_iters;
    return clock->state().finished ? last_iteration : clock->total();
  }
};

// Seconds of a clock that only goes forward.
double monotonic_seconds();

}  // namespace primus
