// What fine-tuning decides before it starts: the format of conversations, and with sft_fit_to_data how long
// and how fast to learn.
#pragma once

#include <memory>

#include "lm/data/sft_dataset.h"
#include "lm/train/objectives/objective.h"

namespace primus {

struct SftPlan : ObjectivePlan {
  // The training data, where it had to be read.
  std::shared_ptr<const data::TokenizedConversations> conversations;
};

// How the experiment's conversations are read.
data::SftOptions sft_options_of(const config::Experiment& experiment, const Tokenizer& tokenizer);

// Where the tokenizer is there (a dry run may do without): sft_conversation_format becomes the name of a
// format. One that nobody chose is the one the run was begun with, else choose_style's. With
// sft_fit_to_data, what the command line leaves open is chosen for `world` ranks:
//   train_epochs        as many as show a model 1000 conversations, from 3 to 25, and 1 for 5000 and more;
//   for fewer
//                       than 1000, up to 12 times as many where the model has less than 1e8 parameters
//   seq_length, global_batch_size   so that a large model has some 200 steps: sequences of the longest
//   conversation or
//                       more, and from 1 to 8 of them
//   lr                  by the number of parameters: 1e-5 for 8e9, and growing with the root as models
//   shrink; ten
//                       times that for adapters
//   eval_iters          0 for fewer than 1000 conversations, so that all of them are learned
// Error(kInvalid, kUnsupported) at the key.
SftPlan plan_fine_tuning(config::Experiment experiment, const FamilyRegistry& families, int world);

}  // namespace primus
