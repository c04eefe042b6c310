// Plans fine-tuning on conversations or preferences before it starts: the conversation format and, with
// sft_fit_to_data, the length, batch and learning rate.
#pragma once

#include <functional>
#include <memory>

#include "lm/data/sft_dataset.h"
#include "lm/train/objectives/objective.h"

namespace primus {

struct SftPlan : ObjectivePlan {
  // The training data, if the plan required reading them; otherwise null.
  std::shared_ptr<const data::TrainingUnits> units;
};

// Reads the training data of one epoch (data::sft_samples_of_epochs, or the function for other units).
using CountEpochs = std::function<data::SftEpochs(const data::SftOptions&, const Tokenizer&, double epochs)>;

// Returns the options for reading the conversations or preferences of the experiment. Preferences are always
// packed and separated.
data::SftOptions sft_options_of(const config::Experiment& experiment, const Tokenizer& tokenizer);

// Sets sft_conversation_format to the name of a format: the user's choice, or else the format of the run that
// is resumed, or else the result of choose_style(); `auto` means the model's own chat template. Changes
// nothing if the tokenizer is missing (possible in a dry run). With sft_fit_to_data, the function also
// chooses the settings that the command line and the experiment file leave open, for `world` ranks:
//   - train_epochs: 3 to 25 epochs, enough to train on about 1000 conversations in total; 1 epoch for 5000
//     conversations or more. With fewer than 1000 conversations, models below 1e8 parameters get up to 12
//     times as many epochs.
//   - seq_length, global_batch_size: a large model gets about 200 steps, with sequences at least as long as
//     the longest conversation, and 1 to 8 sequences per step.
//   - lr: 1e-5 for 8e9 parameters, growing with the inverse square root of the number of parameters for
//     smaller models; ten times that for adapters. Preferences: a tenth of this rate.
//   - eval_iters: 0 for fewer than 1000 conversations, so that all of them are used for training.
// A resumed run keeps its seq_length, global_batch_size and eval_iters, even if the conversations changed.
// Throws Error(kInvalid, kUnsupported) at the location of the key.
SftPlan plan_fine_tuning(config::Experiment experiment, const FamilyRegistry& families, int world,
                         const CountEpochs& count);

}  // namespace primus
