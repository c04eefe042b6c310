// Fine-tuning on texts that are written as conversations. `stage: sft` learns the answers; the objectives of
// preference_objective.h compare answers. All these objectives use the same conversation formats, data order,
// plan and saved files.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "lm/data/sft_dataset.h"
#include "lm/train/objectives/objective.h"

namespace primus {

// The differences between objectives that learn from conversations. Thread-safe.
class ConversationLearning {
 public:
  virtual ~ConversationLearning() = default;

  // Checks the objective's own settings, and changes those that follow from others. Throws Error(kInvalid) at
  // the key.
  virtual void prepare(config::Experiment& /*experiment*/) const {}
  // Checks the tokenizer with which the data are read. Throws Error(kInvalid) at a key.
  virtual void check_tokenizer(const config::Experiment& /*experiment*/,
                               const Tokenizer& /*tokenizer*/) const {}
  // Reads the data. By default, each conversation is a unit.
  virtual data::Datasets open(const data::SftOptions& options, const Tokenizer& tokenizer) const {
    return data::open_sft_datasets(options, tokenizer);
  }
  virtual data::SftEpochs samples_of_epochs(const data::SftOptions& options, const Tokenizer& tokenizer,
                                            double epochs) const {
    return data::sft_samples_of_epochs(options, tokenizer, epochs);
  }
  // Returns the plural of a unit of the data, for messages.
  virtual std::string_view noun() const { return "conversations"; }
  // Returns Objective::trains_scores().
  virtual bool trains_scores() const { return false; }
  // Returns Objective::filled_microbatches().
  virtual std::optional<std::int64_t> filled_microbatches(const data::SftOptions& /*options*/,
                                                          const Tokenizer& /*tokenizer*/,
                                                          const StepSettings& /*step*/,
                                                          int /*data_ranks*/) const {
    return std::nullopt;
  }
  // Implements Objective::prepare_session() and Objective::connect().
  virtual void prepare_session(const config::Experiment& /*experiment*/, int /*world*/,
                               SessionSettings& /*settings*/) const {}
  virtual void connect(LossRule& /*rule*/, const DataRequest& /*request*/, const data::Datasets& /*datasets*/,
                       const data::SftOptions& /*options*/) const {}
  // Returns Objective::loss_rule().
  virtual MakeLossRule loss_rule(const config::Experiment& /*experiment*/) const { return {}; }
};

std::unique_ptr<Objective> make_fine_tuning(std::unique_ptr<const ConversationLearning> learning);

}  // namespace primus
