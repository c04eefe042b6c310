// RunPlan contains all decisions that are made before the first step of a run and do not change afterwards:
// ranks, data, and the experiment with all settings that follow from data, weights and time. RunProgress is
// the current state of the run. Internal to lm/train. Not thread-safe.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/parallel/mesh.h"
#include "lm/data/batch_loader.h"
#include "lm/data/cyclic_dataset.h"
#include "lm/data/dataset.h"
#include "lm/events/run_folder.h"
#include "lm/events/training_monitor.h"
#include "lm/optimizer/schedule.h"
#include "lm/train/job_ranks.h"
#include "lm/train/objectives/objective.h"
#include "lm/train/resume.h"
#include "lm/train/settings/training_settings.h"
#include "lm/train/trainer.h"
#include "lm/train/training_clock.h"

namespace primus {

// Members are initialized in this order.
struct RunPlan {
  RunPlan(std::unique_ptr<Objective> run_objective, const config::Experiment& experiment,
          const FamilyRegistry& registry, Logger& logger, const TrainerOptions& run_options,
          std::vector<std::string> notes);

  // Returns the device on which this rank trains. If a host has several GPUs, each rank uses a different GPU.
  DeviceSpec choose_device(std::vector<std::string>* notes = nullptr) const;
  // Publishes what the run is doing, and which fraction of this work is done.
  void phase(std::string_view what, std::optional<double> share = {}) const;
  data::TokenizeProgressFn tokenize_progress() const;
  DataRequest data_request() const;
  InputIdentity tokenizer_identity() const;
  std::optional<InputIdentity> data_identity() const;  // Returns the identity of the training data; empty if
                                                       // there are none.
  // Returns the options for loading batches. `samples`: if calculate_per_token_loss is set, the loss is the
  // mean over the unmasked labels of this number of samples.
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
  const engine::MeshPlace place;  // position of this rank in the mesh
  SessionSettings settings;
  Schedule schedule;

  data::CyclicOptions cyclic_order;
  std::int64_t timed_steps = 0;  // see DataRequest::timed_steps
  data::Datasets datasets;
  TrainingMonitor* monitor = nullptr;  // null until the run has a folder
};

struct RunProgress {
  std::int64_t iteration = 0;        // number of steps whose update has been enqueued
  std::int64_t first_iteration = 0;  // number of steps completed when this process started
  // The step after which the run ends: train_iters, or the step at which the target loss or the time limit
  // was reached.
  std::int64_t last_iteration = 0;
  static constexpr std::int64_t kNoLastIteration = std::numeric_limits<std::int64_t>::max();
  std::int64_t nan_iterations = 0;
  std::optional<double> last_rate;            // learning rate of the last step; an earlier process may have
                                              // run that step
  StepResult result;                          // result of the last step whose result was reported
  std::optional<BestReward> best_reward;      // of the steps of this process; empty without rewards
  std::string base;                           // folder of the weights from which the run started; empty if it
                                              // started from scratch
  std::optional<InputIdentity> base_weights;  // identity of the weights in that folder when the run started
  // settings that affect learning and have changed since the previous process of this run
  std::vector<std::string> rule_changes;
  std::optional<TrainingClock> clock;               // clock of train_minutes
  std::map<std::string, std::int64_t> good_checks;  // as TrainerState::good_checks
  std::vector<RunWarning> findings;  // of the start; they are published when the process begins to train

  // Returns the number of steps of the run; with train_minutes, the current estimate.
  std::int64_t total_steps(const config::TrainerConfig& c) const;
};

// Returns the time of a monotonic clock, in seconds.
double monotonic_seconds();

}  // namespace primus
