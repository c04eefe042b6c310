// Data for objectives that compare answers (preference.h): DPO and similar objectives, and KTO.
//
// Samples are packed, ordered and held out as in supervised fine-tuning (sft_dataset.h). A unit is
//   - a pair: the chosen text, then the rejected text; or
//   - a labelled answer, and for KTO's KL term its mismatched text: the prompt with the answer of another
//     example.
// Each text of a sample is a document with a role (Batch::document_roles) and a value: the margin of a pair.
// A text is a prompt with an answer, and the loss mask covers the labels of the answer.
//
// The mismatched answer of an example is the answer of the previous example in the order of the files. The
// last example counts as the one before the first. Previous examples with the same prompt are skipped, so
// that the two halves of a pair are not each other's mismatched answers. If all prompts are equal, no example
// is skipped. TRL uses the previous example within a microbatch. Primus and TRL choose the same answers,
// except at the beginning of a microbatch and where neighbours have the same prompt.
//
// A unit of more than seq_length + 1 tokens is truncated: the ends of its texts are cut off, and all texts
// have the same maximum length. A unit is left out if a truncated text has no token of its answer, or if both
// answers of a pair are equal.
//
// Dataset::learned_tokens() returns the number of units of a sample, so that the loss is a mean over units.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lm/data/conversation_files.h"
#include "lm/data/preference.h"
#include "lm/data/sft_dataset.h"

namespace primus::data {

// Preference records as tokens. A text is a conversation of `texts`: a prompt with an answer.
struct TokenizedPreferences {
  TokenizedConversations texts;
  std::vector<std::uint8_t> preferred;  // one entry per text: 1 if its answer is chosen or good
  std::vector<float> margins;           // one entry per text
};

// Reads the files like read_conversations(). For pairs, text 2i is a chosen answer, and text 2i+1 the
// rejected answer. Errors: as read_preference.
TokenizedPreferences read_preferences(const std::vector<InputFile>& files, PreferenceKind kind,
                                      const ConversationWriter& writer, const ReadOptions& options);

// Returns the number of pairs whose opposite is also in the data: another pair has the same two texts, but
// the other one is chosen. `all` must hold pairs.
std::int64_t contradicting_pairs(const TokenizedPreferences& all);

// Returns the kind of the first record: kPairs if it has the keys chosen and rejected, kLabelled if it has
// completion and a label that is a boolean or a number. Keys whose value is null do not count. Returns
// nullopt for other records, and if the record cannot be read.
std::optional<PreferenceKind> kind_of_first_record(const std::vector<InputFile>& files);

// Opens the data sets. `options.pack` and `options.separate` must be set. Errors: as open_sft_datasets, and
// those of read_preference.
Datasets open_preference_datasets(const SftOptions& options, PreferenceKind kind, const Tokenizer& tokenizer);

// Returns the number of samples in `epochs` passes over the training data.
SftEpochs preference_samples_of_epochs(const SftOptions& options, PreferenceKind kind,
                                       const Tokenizer& tokenizer, double epochs);

}  // namespace primus::data
