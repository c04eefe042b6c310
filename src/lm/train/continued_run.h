// Reads records of the run that an experiment continues. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/experiment.h"
#include "lm/train/resume.h"
#include "lm/train/step/session.h"

namespace primus {

// Returns the trainer state of the checkpoint that a run of this experiment would resume: the newest
// checkpoint of the run itself, or else the checkpoint that `load` names. Empty if the run would start from
// scratch.
std::optional<TrainerState> continued_state(const config::Experiment& experiment);
// Returns the trainer state of the newest checkpoint of the run itself; empty if the run has none, or if
// auto_continue_train is false.
std::optional<TrainerState> own_state(const config::Experiment& experiment);
// Refuses to continue a run of another stage: a stage has its own data, loss and learning-rate schedule, so
// the optimizer's state does not fit. pretrain and mlperf_pretrain differ only in their logs, so each
// continues a run of the other. Throws Error(kInvalid) that names the stages.
void refuse_another_stage(const config::Experiment& experiment);
// The parts of a run that are compared with the checkpoint from which it resumes.
struct ResumedParts {
  const config::Experiment& experiment;
  const ModelConfig& model;
  const SessionSettings& settings;
  const FamilyRegistry& families;
  std::optional<InputIdentity> tokenizer, data;  // not compared if empty
};
// Throws the error with which a run refuses a checkpoint because of its model, global_batch_size, tokenizer,
// data or optimizer. Returns a warning about each difference that the experiment permits.
std::vector<std::string> compare_with_checkpoint(const CheckpointReader& checkpoint,
                                                 const TrainerState& state, const ResumedParts& run);

// A run that a dry run found to continue.
struct Continuation {
  std::int64_t iteration = 0;
  std::vector<std::string> warnings;  // warnings that the run itself logs about its checkpoint
  bool compared_data = false;         // whether the training data were compared with the checkpoint's data
};
// Returns how a run of this experiment would continue; empty if the run would start from scratch. `model` and
// `settings`: the experiment's. Throws the error with which the run would refuse the checkpoint. Data
// are compared if they exist and reading them writes no file (Objective::opens_at_once).
std::optional<Continuation> plan_continuation(const config::Experiment& experiment, const ModelConfig& model,
                                              const SessionSettings& settings,
                                              const FamilyRegistry& families);
// Returns the micro_batch_size with which the state was trained; empty if the state contains no readable
// value.
std::optional<std::int64_t> recorded_microbatch(const TrainerState& state);
// Returns the number of rounds (moe_expert_rounds) of the run that this experiment continues. Returns nothing
// if the experiment sets the number, if the run starts from scratch, or if its checkpoint has no number.
std::optional<std::int64_t> continued_expert_rounds(const config::Experiment& experiment);
// Returns the micro_batch_size of the run that this experiment continues; empty if the run starts from
// scratch.
std::optional<std::int64_t> continued_microbatch(const config::Experiment& experiment);

}  // namespace primus
