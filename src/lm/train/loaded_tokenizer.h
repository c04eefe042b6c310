// The tokenizer that `load` brings with it, against the one that the experiment names.
#pragma once

#include <string>
#include <vector>

#include "config/experiment.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus {

// Weights are worth nothing with other tokens than they were trained on. Where the model or checkpoint that
// `load` names has a tokenizer, it is the one to train with: the experiment comes back naming it in place of
// a preset's (said on `notes`), with a preset's vocab_size left out. One that the user named himself has to
// be the same by content, unless allow_tokenizer_change is set: Error(kInvalid) at its key otherwise.
config::Experiment with_loaded_tokenizer(const config::Experiment& experiment,
                                         std::vector<std::string>& notes);

// Whether the tokenizer of an experiment is the one that its `load` brought: then its text need not name it.
bool has_loaded_tokenizer(const config::Experiment& experiment);

// For the log: "tokenizer: HuggingFaceTokenizer of my-tokenizer, 2048 tokens".
std::string describe_tokenizer(const config::Experiment& experiment, const Tokenizer& tokenizer);

}  // namespace primus
