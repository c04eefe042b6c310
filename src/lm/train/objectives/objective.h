// The data and the losses of a run. Each value of the key `stage` has one file in this folder, with an
// ObjectiveEntry.
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
#include "lm/train/resume.h"
#include "lm/train/settings/missing_inputs.h"
#include "lm/train/step/loss_rule.h"

namespace primus {

struct SessionSettings;
struct StepSettings;

// Settings that an objective decides before a run starts.
struct ObjectivePlan {
  config::Experiment experiment;        // the experiment with the planned settings
  std::vector<std::string> facts = {};  // sentences for the log
};

// Describes the run whose data are to be opened.
struct DataRequest {
  const config::Experiment& experiment;
  const Tokenizer& tokenizer;
  data::TokenizeProgressFn progress = {};
  std::function<void(const std::string& text)> warn = {};  // writes a warning to the log of this rank
  // With train_minutes: number of steps for which samples are ordered; later steps repeat them. 0:
  // train_iters.
  std::int64_t timed_steps = 0;
  data::CyclicOptions cyclic = {};  // order of the samples, if the objective's order depends on the ranks
                                    // (depends_on_ranks())
};

class Objective {
 public:
  virtual ~Objective() = default;

  // ---- planning

  // Plans settings that follow from data and weights, for `world` ranks. Changes nothing if the tokenizer is
  // missing, which is possible in a dry run.
  virtual ObjectivePlan plan(config::Experiment experiment, const FamilyRegistry& families, int world);
  // Returns the number of samples in `epochs` passes over the training data. Empty if the data do not exist,
  // or if counting would write a cache, which only a run may do. Throws for data that a run cannot read.
  virtual std::optional<std::int64_t> planned_samples(const DataRequest& request, double epochs) const;
  // Returns the number of microbatches with tokens of a step on `data_ranks` data-parallel ranks, for
  // estimates of time; empty if a step fills all its microbatches, or if the data do not exist. May read the
  // data. `step`: the shape of the microbatches.
  virtual std::optional<std::int64_t> filled_microbatches(const DataRequest& request,
                                                          const StepSettings& step, int data_ranks);
  // Appends the input files of the run that are missing.
  virtual void find_missing(const config::Experiment& experiment,
                            std::vector<MissingInput>& missing) const = 0;
  // Throws the errors of open() that can be found without reading the data.
  virtual void check_samples(const config::Experiment& experiment) const = 0;
  // Returns the max number of tokens in a prompt for sample texts (sample_interval).
  virtual std::int64_t prompt_tokens(const config::TrainerConfig& trainer) const = 0;
  // Changes the settings in config.json according to what training teaches the model: adds the ids that end a
  // text.
  virtual void teach(const config::Experiment& experiment, const Tokenizer& tokenizer,
                     ModelConfig& model) const;

  // Returns whether the trained model computes a score per token (ModelConfig::scores). Such a model may
  // start from a language model; its head is then new.
  virtual bool trains_scores() const { return false; }

  // ---- data

  virtual data::Datasets open(const DataRequest& request) = 0;
  // Returns whether all ranks open the data concurrently. If not, rank 0 opens them first, and builds the
  // files that the other ranks use.
  virtual bool opens_at_once() const { return false; }
  // Returns the number of samples in `epochs` passes over the training data. Reads the data if necessary.
  virtual std::int64_t samples_of_epochs(const DataRequest& request, double epochs) = 0;
  // Returns whether the order of samples depends on the number of ranks (DataRequest::cyclic).
  virtual bool depends_on_ranks(const config::TrainerConfig& trainer) const = 0;
  // Returns whether each document ends with an end token, at which batches can be split into documents.
  virtual bool documents_end_by_token() const = 0;
  // Returns the mean number of text bytes per token of the validation data, for bits per byte; empty for data
  // that is not text.
  virtual std::optional<double> bytes_per_token(const data::Datasets& datasets,
                                                const DataRequest& request) const;
  // Returns the prompt of sample texts (sample_interval) for the case that sample_prompt is not set.
  virtual std::vector<std::int32_t> sample_prompt(const data::Datasets& datasets,
                                                  const DataRequest& request) const = 0;
  // Returns a hint for a warning that says how to set validation data: "set valid_data_path".
  virtual std::string_view validation_hint() const = 0;

  // ---- resuming and saving

  // Returns the name of the training data, for messages.
  virtual std::string data_name(const config::TrainerConfig& trainer) const = 0;
  // Returns whether a change of this key only makes the run longer, with the same samples in the same order.
  virtual bool keeps_order(std::string_view key) const = 0;
  // Throws the error that the checkpoint was trained with other data.
  [[noreturn]] virtual void refuse_changed_data(const ChangedData& changed) const = 0;
  // Adds to `files` what users of the model need besides the weights. `files` already contains config.json
  // and the tokenizer's files.
  virtual void finish_model_files(const DataRequest& request, const ModelConfig& model,
                                  std::vector<Snapshot::Blob>& files) const = 0;

  // ---- training

  // Returns the loss rule (lm/train/step/loss_rule.h): frozen models, work before a step, and loss weights.
  // Null: the loss is the mean of -ln p(label) over unmasked labels.
  virtual MakeLossRule loss_rule(const config::Experiment& experiment) const;
  // Changes the settings of the session of a run on `world` ranks, for example to reserve memory for a
  // decoder. `settings.loss_rule` is already set. Checkpoints keep the original config.json.
  virtual void prepare_session(const config::Experiment& experiment, int world,
                               SessionSettings& settings) const;
  // Gives the session's loss rule the parts of the run that it uses, such as the data. Called before
  // LossRule::load_weights(). `datasets` and `request.tokenizer` outlive the rule.
  virtual void connect(LossRule& rule, const DataRequest& request, const data::Datasets& datasets) const;
};

// The entry of an objective. The objective's file defines the entry as `extern const ObjectiveEntry
// kPretrain{...}`. The build copies the initializer of `.stage` into config's table of stages. Therefore
// `.stage` must come first, and its texts must contain no semicolon and no brace.
struct ObjectiveEntry {
  config::Stage stage;  // value of the key `stage` that selects this objective
  std::unique_ptr<Objective> (*make)();
};

// Returns all objectives. Each is selected by its `stage`.
std::span<const ObjectiveEntry* const> objectives();
std::unique_ptr<Objective> make_objective(const config::TrainerConfig& trainer);
const Objective& objective_of(const config::TrainerConfig& trainer);

}  // namespace primus
