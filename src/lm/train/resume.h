// Continuing a run: what its checkpoint says of the run that wrote it, against the experiment of today.
//
// Free functions without state; errors are Error(kInvalid), naming the checkpoint's file.
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

// Weights, a tokenizer or training data, by name and by a hash of its content.
struct InputIdentity {
  std::string name;  // for people
  std::uint64_t fingerprint = 0;
};

// trainer_state.json.
struct TrainerState {
  std::int64_t iteration = 0;  // completed steps
  std::int64_t consumed_samples = 0;
  std::int64_t global_batch_size = 0;
  std::int64_t seed = 0;
  std::int64_t nan_iterations = 0;  // steps whose loss or gradients were NaN or Inf, since the run began
  double lm_loss = 0;
  std::int64_t train_iters = 0;              // steps that the run was to have; 0 in older checkpoints
  std::optional<ClockState> clock = {};      // of train_minutes
  std::optional<double> learning_rate = {};  // of the last step; older checkpoints have none
  // How the order of cyclic data was drawn (cyclic_dataset.h); 0 in older checkpoints, and of other data.
  std::int64_t cyclic_ranks = 0, cyclic_micro_batch_size = 0;
  std::string experiment;          // config::to_yaml of the experiment that wrote it
  std::string optimizer = "adam";  // the update rules (names_of); older checkpoints have AdamW
  std::string base =
      {};  // the folder of the weights it began from; empty: from nothing, or an older checkpoint
  // Those weights, and what the run was trained with; empty in checkpoints of older versions.
  std::optional<InputIdentity> base_weights, tokenizer, data;
};
std::string write_trainer_state(const TrainerState& state);
TrainerState read_trainer_state(const CheckpointReader& checkpoint);

// Refuses a checkpoint whose model computes something else than `model`, which `experiment` describes: names
// a key of config.json that differs, at the place of the experiment's setting behind it, where somebody set
// one. Weights of the same shapes would load all the same, and the run would go on with another model.
// `kContinued`: the same run goes on. `kFinetuned`: a run begins from these weights, and may stretch their
// context.
enum class Start : std::uint8_t { kContinued, kFinetuned };
void refuse_another_model(const CheckpointReader& checkpoint, const config::Experiment& experiment,
                          const ModelConfig& model, DType compute, const FamilyRegistry& families,
                          Start start);

// A setting that differs between two experiments as config::to_yaml writes them.
struct SettingChange {
  std::string key, before, after;  // a value is empty where the setting is not there
  // Whether samples come in another order, or others come, so that part of the data is seen twice or never.
  bool moves_data = false;
};
std::vector<SettingChange> changed_settings(std::string_view before, std::string_view after);

// The setting of `keys` that names an input, for an error: the first that the experiment sets.
std::string_view key_in_use(const config::Experiment& experiment,
                            std::initializer_list<std::string_view> keys);

// Training data that is not what a checkpoint was trained on.
struct ChangedData {
  const CheckpointReader& checkpoint;
  const TrainerState& state;
  const config::Experiment& experiment;
  InputIdentity before, now;

  // "'runs/x/iter_10' was trained with another <what>: ...", at `key`.
  [[noreturn]] void refuse(std::string_view key, std::string_view what) const;
  // "'runs/x/iter_10' was trained with seq_length: 64, <so>".
  [[noreturn]] void refuse_setting(const SettingChange& change, std::string_view so) const;
};

// Refuses to go on with another tokenizer, or with other data, than the checkpoint was trained with; unless
// the experiment says by allow_tokenizer_change and allow_data_change that this is wanted. Without training
// data today there is nothing to compare.
void refuse_other_inputs(const CheckpointReader& checkpoint, const TrainerState& state,
                         const config::Experiment& experiment, const InputIdentity& tokenizer,
                         const std::optional<InputIdentity>& data);

// Whether a checkpoint has optimizer state (no_save_optim leaves it out).
bool has_optimizer_state(const CheckpointReader& checkpoint);

// Refuses the optimizer state of other update rules than `optimizer`, those of the experiment (names_of):
// states of one rule mean nothing to another, though they may have the same name.
void refuse_another_optimizer(const CheckpointReader& checkpoint, const TrainerState& state,
                              const config::Experiment& experiment, std::string_view optimizer);

// The settings of an experiment as config::to_yaml writes it, by key.
std::map<std::string, std::string> settings_of(std::string_view yaml);

// What a setting was, as config::to_yaml writes it; empty where the record does not say.
std::string recorded_setting(const TrainerState& state, const std::string& key);

}  // namespace primus
