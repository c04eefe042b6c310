// Compares a checkpoint's record with the current experiment, to resume a run.
//
// Free functions without state. Errors are Error(kInvalid), which names the checkpoint's file.
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
#include "lm/tokenizer/tokenizer.h"
#include "lm/train/training_clock.h"

namespace primus {

// Weights, a tokenizer or training data, identified by name and content hash.
struct InputIdentity {
  std::string name;  // name of the input, for messages
  std::uint64_t fingerprint = 0;
};

// Returns the identity of a tokenizer; its name is the name of its kind.
InputIdentity identity_of(const Tokenizer& tokenizer);

// The contents of trainer_state.json.
struct TrainerState {
  std::int64_t iteration = 0;  // number of completed steps
  std::int64_t consumed_samples = 0;
  std::int64_t global_batch_size = 0;
  std::int64_t seed = 0;
  // Number of steps since the run started whose loss or gradients had NaN or infinity.
  std::int64_t nan_iterations = 0;
  double lm_loss = 0;
  std::int64_t train_iters = 0;              // number of steps that the run planned; 0 in older checkpoints
  std::optional<ClockState> clock = {};      // state of the clock of train_minutes
  std::optional<double> learning_rate = {};  // learning rate of the last step; empty in older checkpoints
  // The number of ranks and the micro_batch_size, on which the order of cyclic data depends
  // (cyclic_dataset.h). 0 in older checkpoints and for other data.
  std::int64_t cyclic_ranks = 0, cyclic_micro_batch_size = 0;
  std::string experiment;  // YAML of the experiment that wrote the checkpoint, as written by config::to_yaml
  std::string optimizer = "adam";  // names of the update rules (names_of); the rules of AdamW in older
                                   // checkpoints
  // Folder of the weights from which the run started; empty if the run started from scratch, and in older
  // checkpoints.
  std::string base = {};
  // Identities of the weights from which the run started, of its tokenizer, and of its data; empty in older
  // checkpoints.
  std::optional<InputIdentity> base_weights, tokenizer, data;
  // The step of the last good check for silent corruption, by the key of the check. The state itself may be
  // newer, and is then unproven. Only the checks that were on are listed.
  std::map<std::string, std::int64_t> good_checks = {};
  // Number of rounds in which tokens travel to experts of other ranks (moe_expert_rounds). 0 if no ranks
  // share experts, and in older checkpoints.
  std::int64_t expert_rounds = 0;
};
std::string write_trainer_state(const TrainerState& state);
TrainerState read_trainer_state(const CheckpointReader& checkpoint);

// Refuses a checkpoint whose model differs from `model`, the model of `experiment`. Without this check,
// weights of equal shapes would be loaded, and the run would silently continue with another model. The error
// names a key of config.json that differs. If the experiment sets this key, the error also names the
// location. kContinued: the same run resumes. kFinetuned: a new run starts from the weights, and may extend
// their context.
enum class Start : std::uint8_t { kContinued, kFinetuned };
void refuse_another_model(const CheckpointReader& checkpoint, const config::Experiment& experiment,
                          const ModelConfig& model, DType compute, const FamilyRegistry& families,
                          Start start);

// Refuses a checkpoint that was trained with another global_batch_size. The position in the data is the
// number of steps times the batch size, so another batch size would change the position.
void refuse_another_batch(const CheckpointReader& checkpoint, const TrainerState& state,
                          const config::Experiment& experiment);

// A setting that differs between two experiments, as written by config::to_yaml.
struct SettingChange {
  std::string key, before, after;  // name of the setting, its old value, and its new value; a value is empty
                                   // if the setting is missing
  // Whether the change affects the samples or their order, so that some data would be seen twice or never.
  bool moves_data = false;
};
std::vector<SettingChange> changed_settings(std::string_view before, std::string_view after);

// Returns the first of `keys` that the experiment sets; an error about an input names this key.
std::string_view key_in_use(const config::Experiment& experiment,
                            std::initializer_list<std::string_view> keys);

// Training data that differ from the data of the checkpoint.
struct ChangedData {
  const CheckpointReader& checkpoint;
  const TrainerState& state;
  const config::Experiment& experiment;
  InputIdentity before, now;
  bool other_tokenizer = false;  // whether the tokenizer differs, too; the same text then has other tokens

  // Throws the error "'runs/x/iter_10' was trained with another <what>: ...", at `key`.
  [[noreturn]] void refuse(std::string_view key, std::string_view what) const;
  // Throws the error "'runs/x/iter_10' was trained with seq_length: 64, <so>".
  [[noreturn]] void refuse_setting(const SettingChange& change, std::string_view so) const;
};

// Compares the tokenizer and the data with the checkpoint's tokenizer and data. Throws if they differ, unless
// allow_tokenizer_change or allow_data_change permits the difference. Returns a warning about each permitted
// difference. Data are not compared if the experiment has no training data.
std::vector<std::string> compare_inputs(const CheckpointReader& checkpoint, const TrainerState& state,
                                        const config::Experiment& experiment, const InputIdentity& tokenizer,
                                        const std::optional<InputIdentity>& data);
// Returns whether `tokenizer` gives other ids than the tokenizer with which the checkpoint was trained.
// Returns false if the checkpoint's tokenizer is unknown.
bool has_other_tokenizer(const TrainerState& state, const InputIdentity& tokenizer);
// Returns whether `data` are not the data with which the checkpoint was trained. Returns false if one of the
// two is unknown.
bool has_other_data(const TrainerState& state, const std::optional<InputIdentity>& data);

// Returns whether a checkpoint has optimizer state. A checkpoint has none if no_save_optim was set.
bool has_optimizer_state(const CheckpointReader& checkpoint);

// Refuses the checkpoint's optimizer state if other update rules than `optimizer` wrote the state.
// `optimizer` names the rules of the experiment (names_of). States of different rules are incompatible, even
// if the states have the same names.
void refuse_another_optimizer(const CheckpointReader& checkpoint, const TrainerState& state,
                              const config::Experiment& experiment, std::string_view optimizer);

// Parses YAML that config::to_yaml wrote; returns the settings by key.
std::map<std::string, std::string> settings_of(std::string_view yaml);

// Returns the recorded value of a setting, as written by config::to_yaml; "" if the setting is not recorded.
std::string recorded_setting(const TrainerState& state, const std::string& key);

}  // namespace primus
