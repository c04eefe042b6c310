// The data and the losses of a run. Each value of `stage` has one file here with its entry.
//
// An objective opens the run's data, plans settings that follow from data and weights, adds the files that a
// trained model needs next to its weights, and computes the losses of a step. Code outside this folder does
// not depend on the objective.
//
// Errors are Error(kInvalid) at the offending key. An objective belongs to one run and one thread;
// objective_of() returns shared objectives, whose const methods may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/experiment.h"
#include "config/stages.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/data/cyclic_dataset.h"
#include "lm/data/dataset.h"
#include "lm/model/family.h"
#include "lm/tokenizer/tokenizer.h"
#include "lm/train/loss_rule.h"
#include "lm/train/missing_inputs.h"
#include "lm/train/resume.h"

namespace primus {

// Settings that a run decides before it starts.
struct ObjectivePlan {
  config::Experiment experiment;        // the experiment with the planned settings
  std::vector<std::string> facts = {};  // sentences for the log
};

// The run to open data for.
struct DataRequest {
  const config::Experiment& experiment;
  const Tokenizer& tokenizer;
  data::TokenizeProgressFn progress = {};
  // With train_minutes: the number of steps whose samples are ordered; the order then repeats. 0:
  // train_iters.
  std::int64_t timed_steps = 0;
  data::CyclicOptions cyclic = {};  // order for objectives that depend on ranks (depends_on_ranks())
};

class Objective {
 public:
  virtual ~Objective() = default;

  // ---- planning

  // Plans settings that follow from data and weights, for `world` ranks. Changes nothing if the tokenizer is
  // missing, as it may be in a dry run.
  virtual ObjectivePlan plan(config::Experiment experiment, const FamilyRegistry& families, int world);
  // Returns the number of samples in `epochs` passes over the training data; empty if only a run can count
  // them, because counting writes a cache, or if the data do not exist. Throws for data that a run cannot
  // read.
  virtual std::optional<std::int64_t> planned_samples(const DataRequest& request, double epochs) const;
  // Appends the missing inputs of the run.
  virtual void find_missing(const config::Experiment& experiment,
                            std::vector<MissingInput>& missing) const = 0;
  // Throws the errors of open() that can be found without reading the data.
  virtual void check_samples(const config::Experiment& experiment) const = 0;
  // Max tokens of a prompt for samples (sample_interval).
  virtual std::int64_t prompt_tokens(const config::TrainerConfig& trainer) const = 0;
  // Changes the model's settings to match what it learns in training: adds the ids that end a text.
  virtual void teach(const config::Experiment& experiment, const Tokenizer& tokenizer,
                     ModelConfig& model) const;

  // ---- data

  virtual data::Datasets open(const DataRequest& request) = 0;
  // Whether all ranks open the data concurrently. Otherwise rank 0 opens the data first and builds the files
  // that the other ranks use.
  virtual bool opens_at_once() const { return false; }
  // Returns the number of samples in `epochs` passes over the training data. Reads the data if necessary.
  virtual std::int64_t samples_of_epochs(const DataRequest& request, double epochs) = 0;
  // Whether the order of samples depends on the number of ranks (DataRequest::cyclic).
  virtual bool depends_on_ranks(const config::TrainerConfig& trainer) const = 0;
  // Whether each document ends with an end token, so that batches can be split into documents at these
  // tokens.
  virtual bool documents_end_by_token() const = 0;
  // Mean text bytes per token of the validation data, for bits per byte; empty for data that is not text.
  virtual std::optional<double> bytes_per_token(const data::Datasets& datasets,
                                                const DataRequest& request) const;
  // Returns the prompt of samples (sample_interval) if sample_prompt is not set.
  virtual std::vector<std::int32_t> sample_prompt(const data::Datasets& datasets,
                                                  const DataRequest& request) const = 0;
  // How to set validation data, for a warning: "set valid_data_path".
  virtual std::string_view validation_hint() const = 0;

  // ---- resuming and saving

  // The training data's name, for messages.
  virtual std::string data_name(const config::TrainerConfig& trainer) const = 0;
  // Whether a change of this key keeps the samples and their order and only makes the run longer.
  virtual bool keeps_order(std::string_view key) const = 0;
  // Throws the error for data that differs from the checkpoint's training data.
  [[noreturn]] virtual void refuse_changed_data(const ChangedData& changed) const = 0;
  // Adds to `files`, the files next to the weights, everything that users of this objective's models need.
  // config.json and the tokenizer's files are already in `files`.
  virtual void finish_model_files(const DataRequest& request, const ModelConfig& model,
                                  std::vector<Snapshot::Blob>& files) const = 0;

  // ---- training

  // Returns the rule for frozen models, work before a step, and loss weights (lm/train/loss_rule.h). Null:
  // the loss is the mean of -ln p(label) over unmasked labels.
  virtual MakeLossRule loss_rule(const config::Experiment& experiment) const;
};

// The entry of an objective, which its file defines as `extern const ObjectiveEntry kPretrain{...}`. The
// build copies the braces after `.stage =` into config's table of stages. So `.stage` must come first, and
// its texts must have no semicolon and no brace.
struct ObjectiveEntry {
  config::Stage stage;  // value of the key `stage` that selects this objective
  std::unique_ptr<Objective> (*make)();
};

// Objectives, found by `stage`.
std::span<const ObjectiveEntry* const> objectives();
std::unique_ptr<Objective> make_objective(const config::TrainerConfig& trainer);
const Objective& objective_of(const config::TrainerConfig& trainer);

}  // namespace primus
