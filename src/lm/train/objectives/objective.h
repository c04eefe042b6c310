// The data and the losses of a run: one file and one entry for each value of `stage`.
//
// An objective opens the run's data, plans what data and weights decide, names the files that a trained model
// needs beside its weights, and makes the losses of a step. Nothing outside this folder depends on which one
// it is.
//
// Errors are Error(kInvalid) at the place of the key that is to blame. An objective belongs to one run and
// one thread; objective_of() gives shared ones, of which const methods may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/experiment.h"
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
  config::Experiment experiment;        // with what was decided
  std::vector<std::string> facts = {};  // sentences for the log
};

// The run that data is opened for.
struct DataRequest {
  const config::Experiment& experiment;
  const Tokenizer& tokenizer;
  data::TokenizeProgressFn progress = {};
  // With train_minutes: the steps for which samples are ordered, and then repeated. 0: train_iters.
  std::int64_t timed_steps = 0;
  data::CyclicOptions cyclic = {};  // of objectives whose order depends_on_ranks()
};

class Objective {
 public:
  virtual ~Objective() = default;

  // ---- planning

  // Settings that follow from data and weights, for `world` ranks. Leaves them as they are where the
  // tokenizer is not here: a dry run may do without.
  virtual ObjectivePlan plan(config::Experiment experiment, const FamilyRegistry& families, int world);
  // Samples in so many passes over the training data, where plan() has read it; else unknown.
  virtual std::optional<std::int64_t> planned_samples(const DataRequest& request, double epochs) const;
  // Adds what the run would read and is not there.
  virtual void find_missing(const config::Experiment& experiment,
                            std::vector<MissingInput>& missing) const = 0;
  // Refuses what open() would refuse, as far as that is known without reading the data.
  virtual void check_samples(const config::Experiment& experiment) const = 0;
  // Tokens of a prompt that samples (sample_interval) may begin with.
  virtual std::int64_t prompt_tokens(const config::TrainerConfig& trainer) const = 0;
  // Changes the model by what it is taught: the ids that end a text.
  virtual void teach(const config::Experiment& experiment, const Tokenizer& tokenizer,
                     ModelConfig& model) const;

  // ---- data

  virtual data::Datasets open(const DataRequest& request) = 0;
  // Whether ranks open the data at once. Otherwise the first rank goes first, and makes what the others use.
  virtual bool opens_at_once() const { return false; }
  // Samples in so many passes over the training data; reads it if need be.
  virtual std::int64_t samples_of_epochs(const DataRequest& request, double epochs) = 0;
  // Whether the order of samples depends on how many ranks draw it (DataRequest::cyclic).
  virtual bool depends_on_ranks(const config::TrainerConfig& trainer) const = 0;
  // Whether a document ends with a token, so that batches can be cut into documents by it.
  virtual bool documents_end_by_token() const = 0;
  // Bytes of text in a token of the validation data, for bits per byte; unknown for data that is no text.
  virtual std::optional<double> bytes_per_token(const data::Datasets& datasets,
                                                const DataRequest& request) const;
  // The prompt of samples (sample_interval), where sample_prompt is not set.
  virtual std::vector<std::int32_t> sample_prompt(const data::Datasets& datasets,
                                                  const DataRequest& request) const = 0;
  // How to give a run validation data, for a warning: "set valid_data_path".
  virtual std::string_view validation_hint() const = 0;

  // ---- resuming and saving

  // The name of the training data, for people.
  virtual std::string data_name(const config::TrainerConfig& trainer) const = 0;
  // Another value of this key trains on the same samples in the same order, only longer.
  virtual bool keeps_order(std::string_view key) const = 0;
  // Throws: the data is not what the checkpoint was trained on.
  [[noreturn]] virtual void refuse_changed_data(const ChangedData& changed) const = 0;
  // Puts what this objective taught into the files beside the weights: config.json and the tokenizer's files
  // are there already.
  virtual void finish_model_files(const DataRequest& request, const ModelConfig& model,
                                  std::vector<Snapshot::Blob>& files) const = 0;

  // ---- training

  // Models beside the trained one, work before a step, and what losses weigh (lm/train/loss_rule.h). Empty:
  // the mean of -ln p(label) over the labels that count.
  virtual MakeLossRule loss_rule(const config::Experiment& experiment) const;
};

// An objective's entry: `extern const ObjectiveEntry kPretrain{...}` in its file.
struct ObjectiveEntry {
  std::string_view stage;  // a choice of the key `stage` (config/stages.h)
  std::unique_ptr<Objective> (*make)();
};

// By `stage`.
std::span<const ObjectiveEntry* const> objectives();
std::unique_ptr<Objective> make_objective(const config::TrainerConfig& trainer);
const Objective& objective_of(const config::TrainerConfig& trainer);

}  // namespace primus
