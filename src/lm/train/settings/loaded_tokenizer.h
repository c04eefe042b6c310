// Reconciles the tokenizer of the model that `load` names with the experiment's tokenizer.
#pragma once

#include <string>
#include <vector>

#include "config/experiment.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus {

// Weights are useful only with the tokens on which they were trained. If the model or checkpoint that `load`
// names has a tokenizer, training therefore uses this tokenizer. The returned experiment names this tokenizer
// instead of a preset's tokenizer (with a note in `notes`), and has no vocab_size from the preset. A
// tokenizer that the user names must have the same content. Otherwise throws Error(kInvalid) at the key of
// the tokenizer, except with allow_tokenizer_change.
config::Experiment with_loaded_tokenizer(const config::Experiment& experiment,
                                         std::vector<std::string>& notes);

// Returns whether the tokenizer of the experiment was found through `load`. In this case the experiment file
// need not name a tokenizer.
bool has_loaded_tokenizer(const config::Experiment& experiment);

// Returns whether the user set allow_tokenizer_change and named a tokenizer, `tokenizer`, whose ids differ
// from those of the tokenizer in the folder that `load` names. Returns false if that folder has no tokenizer.
bool replaces_loaded_tokenizer(const config::Experiment& experiment, const Tokenizer& tokenizer);

// Describes the tokenizer for the log: "tokenizer: HuggingFaceTokenizer of my-tokenizer, 2048 tokens".
std::string describe_tokenizer(const config::Experiment& experiment, const Tokenizer& tokenizer);

}  // namespace primus
