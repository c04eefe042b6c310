// RunPlan holds all decisions of a run before its first step, which do not change afterwards: ranks, data,
// and the experiment with all settings that follow from data, weights and time. RunProgress: the run's
// current state. Internal to lm/train. One thread.
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

// Members are initialized in this order.
struct RunPlan {
  RunPlan(std::unique_ptr<Objective> run_objective, const config::Experiment& experiment,
          const FamilyRegistry& registry, Logger& logger, const TrainerOptions& run_options,
          std::vector<std::string> notes);

  // Returns the device that this rank trains on. With several GPUs on a host, each rank uses a separate GPU.
  DeviceSpec choose_device(std::vector<std::string>* notes = nullptr) const;
  // Publishes the current activity, and the fraction of it that is done.
  void phase(std::string_view what, std::optional<double> share = {}) const;
  data::TokenizeProgressFn tokenize_progress() const;
  DataRequest data_request() const;
  InputIdentity tokenizer_identity() const;
  std::optional<InputIdentity> data_identity() const;  // Empty if there is no training data.
  // `samples`: the number of samples whose unmasked labels share one mean, if calculate_per_token_loss is
  // set.
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
  const engine::MeshPlace place;  // place of this rank in the mesh
  SessionSettings settings;
  Schedule schedule;

  data::CyclicOptions cyclic_order;
  std::int64_t timed_steps = 0;  // see DataRequest::timed_steps
  data::Datasets datasets;
  TrainingMonitor* monitor = nullptr;  // null until the run has a folder
};

struct RunProgress {
  std::int64_t iteration = 0;        // number of steps whose update is enqueued
  std::int64_t first_iteration = 0;  // number of steps completed when this process started
  // The step after which the run ends: train_iters, or the step at which it reached its target or its time
  // limit.
  std::int64_t last_iteration = 0;
  static constexpr std::int64_t kNoLastIteration = std::numeric_limits<std::int64_t>::max();
  std::int64_t nan_iterations = 0;
  std::optional<double> last_rate;            // learning rate of the last step, even if an earlier process
                                              // ran it
  StepResult result;                          // result of the last step that was reported
  std::string base;                           // folder of the weights that the run started from; empty: none
  std::optional<InputIdentity> base_weights;  // identity of that folder when the run started
  // settings that affect learning and changed since the previous process
  std::vector<std::string> rule_changes;
  std::optional<TrainingClock> clock;  // clock of train_minutes

  // Steps of the run; with train_minutes, the current estimate.
  std::int64_t total_steps(const config::TrainerConfig& c) const;
};

// Seconds of a monotonic clock.
double monotonic_seconds();

}  // namespace primus
