// Compares a checkpoint's record with the current experiment, to resume a run.
//
// Free functions without state. Errors are Error(kInvalid) that names the checkpoint's file.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/experiment.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/model/family.h"
#include "lm/train/training_clock.h"

namespace primus {

// Weights, a tokenizer or training data, identified by name and content hash.
struct InputIdentity {
  std::string name;  // name for messages
  std::uint64_t fingerprint = 0;
};

// The contents of trainer_state.json.
struct TrainerState {
  std::int64_t iteration = 0;  // number of completed steps
  std::int64_t consumed_samples = 0;
  std::int64_t global_batch_size = 0;
  std::int64_t seed = 0;
  // Number of steps with NaN or Inf in loss or gradients since the run started.
  std::int64_t nan_iterations = 0;
  double lm_loss = 0;
  std::int64_t train_iters = 0;              // number of planned steps; 0 in older checkpoints
  std::optional<ClockState> clock = {};      // clock of train_minutes
  std::optional<double> learning_rate = {};  // learning rate of the last step; empty in older checkpoints
  // The ranks and micro_batch_size that the order of cyclic data depends on (cyclic_dataset.h); 0 in older
  // checkpoints and for other data.
  std::int64_t cyclic_ranks = 0, cyclic_micro_batch_size = 0;
  std::string experiment;  // experiment of the run that wrote the checkpoint, as a text of config::to_yaml
  std::string optimizer = "adam";  // names of the update rules (names_of); for older checkpoints, those of
                                   // AdamW
  // Folder of the weights that the run started from; empty: none, or an older checkpoint.
  std::string base = {};
  // Identities of the starting weights, and of the tokenizer and data of the run; empty in older checkpoints.
  std::optional<InputIdentity> base_weights, tokenizer, data;
};
std::string write_trainer_state(const TrainerState& state);
TrainerState read_trainer_state(const CheckpointReader& checkpoint);

// Refuses a checkpoint whose model differs from `model`, which `experiment` describes. Weights with equal
// shapes would load, and the run would silently continue with another model. The error names a key of
// config.json that differs, and the place where the experiment sets it, if it does. With `kContinued` the
// same run resumes; with `kFinetuned` a new run starts from the weights, and may stretch their context.
enum class Start : std::uint8_t { kContinued, kFinetuned };
void refuse_another_model(const CheckpointReader& checkpoint, const config::Experiment& experiment,
                          const ModelConfig& model, DType compute, const FamilyRegistry& families,
                          Start start);

// A setting that differs between two experiments, as written by config::to_yaml.
struct SettingChange {
  std::string key, before, after;  // old and new value; empty where the setting is missing
  // Whether samples or their order change, so that part of the data is seen twice or never.
  bool moves_data = false;
};
std::vector<SettingChange> changed_settings(std::string_view before, std::string_view after);

// Returns the first of `keys` that the experiment sets, to name an input in an error.
std::string_view key_in_use(const config::Experiment& experiment,
                            std::initializer_list<std::string_view> keys);

// Training data that differs from the checkpoint's data.
struct ChangedData {
  const CheckpointReader& checkpoint;
  const TrainerState& state;
  const config::Experiment& experiment;
  InputIdentity before, now;

  // Throws "'runs/x/iter_10' was trained with another <what>: ...", at `key`.
  [[noreturn]] void refuse(std::string_view key, std::string_view what) const;
  // Throws "'runs/x/iter_10' was trained with seq_length: 64, <so>".
  [[noreturn]] void refuse_setting(const SettingChange& change, std::string_view so) const;
};

// Refuses to resume if the tokenizer or the data differ from the checkpoint's, unless allow_tokenizer_change
// or allow_data_change permits it. Compares no data if the experiment has no training data.
void refuse_other_inputs(const CheckpointReader& checkpoint, const TrainerState& state,
                         const config::Experiment& experiment, const InputIdentity& tokenizer,
                         const std::optional<InputIdentity>& data);

// Whether a checkpoint has optimizer state (no_save_optim leaves it out).
bool has_optimizer_state(const CheckpointReader& checkpoint);

// Refuses the optimizer state of other update rules than `optimizer`, the experiment's rules (names_of).
// States of different rules are incompatible, even under the same name.
void refuse_another_optimizer(const CheckpointReader& checkpoint, const TrainerState& state,
                              const config::Experiment& experiment, std::string_view optimizer);

// Parses the settings that config::to_yaml wrote, by key.
std::map<std::string, std::string> settings_of(std::string_view yaml);

// Returns the recorded value of a setting, as written by config::to_yaml; "" if there is no record of it.
std::string recorded_setting(const TrainerState& state, const std::string& key);

}  // namespace primus
