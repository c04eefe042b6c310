// Reconciles the tokenizer of the model that `load` names with the experiment's tokenizer.
#pragma once

#include <string>
#include <vector>

#include "config/experiment.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus {

// Weights are useless with tokens on which they were not trained. So if the model or checkpoint that `load`
// names has a tokenizer, training uses this tokenizer. The returned experiment names it instead of a preset's
// tokenizer (with a note in `notes`) and drops a preset's vocab_size. A tokenizer that the user named must
// have the same content, unless allow_tokenizer_change is set; otherwise the function throws Error(kInvalid)
// at the key of the tokenizer.
config::Experiment with_loaded_tokenizer(const config::Experiment& experiment,
                                         std::vector<std::string>& notes);

// Whether the experiment's tokenizer came with `load`. If so, the experiment's text need not name a
// tokenizer.
bool has_loaded_tokenizer(const config::Experiment& experiment);

// Describes the tokenizer for the log: "tokenizer: HuggingFaceTokenizer of my-tokenizer, 2048 tokens".
std::string describe_tokenizer(const config::Experiment& experiment, const Tokenizer& tokenizer);

}  // namespace primus
