// Data for supervised fine-tuning: conversations whose answers are learned (conversation_format.h).
//
// Each sample is a sequence of L = seq_length inputs, plus the label of the last one. A padded sample is one
// conversation; a packed sample holds several, packed first-fit. A conversation of more than L + 1 tokens is
// truncated. The rest of a sample is filled with padding tokens, which are never learned. A label counts in
// the loss if the label is a learned token and its input belongs to the same conversation. The first token of
// an answer therefore counts, although its input is the last token of the prompt.
//
// Other objectives put other units into the samples (training_units.h), such as pairs of answers
// (preference_dataset.h).
//
// Let P be the number of samples. Draw d of the run is sample d mod P of epoch d div P, for every mesh. With
// `shuffle`, the order in an epoch depends only on the seed and the epoch's number. The number of consumed
// samples is therefore the only state to save.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lm/data/conversation_files.h"
#include "lm/data/dataset.h"
#include "lm/data/epoch_order.h"
#include "lm/data/training_units.h"

namespace primus::data {

// Describes which conversations can be used if the model generates their last answers.
struct AnswerLimits {
  // The number of tokens for which a sample must have room after a prompt.
  std::int64_t max_completion_length = 1;
  std::optional<std::int64_t> max_prompt_length = {};
  bool only_prompts = false;  // whether no answers are read, so that records may lack them
};

struct SftOptions {
  std::string dataset;                // file, glob or folder with conversations: see conversation_files.h
  std::string train_split = "train";  // name prefix of the training files in a folder
  std::string format = "alpaca";      // name of the conversation format, or "auto": see choose_style in
                                      // chat_template.h
  bool skip_bad = false;              // whether broken records are skipped and counted
  // Packs as Megatron Bridge does: every text between two borders is encoded separately, with its own BOS
  // token; conversations that are too long are left out; packs are filled in random order.
  bool inline_bos = false;
  bool pack = false;      // whether several conversations are packed into one sequence
  bool separate = false;  // with `pack`: whether positions and attention are restricted to each conversation
  // Whether the last token of each text is an input of the model, not only a label. Samples then have
  // seq_length tokens instead of seq_length + 1.
  bool last_token_is_input = false;
  // If set, the model generates answers during training (on_policy_dataset.h).
  std::optional<AnswerLimits> own_answers = {};
  bool can_evaluate = true;  // false: the run never evaluates, and remarks on held-out data say so
  bool shuffle = true;       // true: a different order in each epoch; false: the order of the files
  // Shares of train, validation and test, as "95,5,0", for data without separate files for these splits.
  // Empty: if the run validates and there are at least ten conversations, a hundredth of the conversations is
  // held out for validation. If a share rounds to zero conversations although the run uses the split, the
  // split gets one conversation.
  std::string shares;
  std::int64_t seq_length = 0, seed = 1234;
  // Number of samples that training, all evaluations together, and the test will draw. A split with 0 is not
  // opened.
  std::int64_t train_samples = 0, valid_samples = 0, test_samples = 0;
  std::int64_t vocab_size = 0;  // an id >= vocab_size is an error; 0: the tokenizer's vocabulary size
  // The training data, if sft_samples_of_epochs() has already read them; otherwise null.
  std::shared_ptr<const TrainingUnits> units;
  TokenizeProgressFn progress;
};

// A data set whose samples consist of conversations, or of other units.
class SftDataset final : public Dataset {
 public:
  struct Layout {
    std::int64_t seq_length = 0, seed = 0;
    std::int32_t pad = 0;
    bool pack = false, separate = false, shuffle = false;
    bool leave_out_long = false, random_fit = false;
    bool last_token_is_input = false;  // SftOptions::last_token_is_input
  };
  struct Counts {
    std::int64_t units = 0;             // number of units that the samples contain
    std::int64_t truncated = 0;         // number of units that were truncated
    std::int64_t too_long = 0;          // number of units left out because they are too long
    std::int64_t nothing_to_learn = 0;  // number of units left out without a label within seq_length
    std::int64_t unanswered = 0;        // number of units left out without a label at any length
    std::int64_t tokens = 0, learned = 0;
  };

  // `which`: indices of the units to use. Throws Error(kInvalid) if none of these units has a learned token.
  SftDataset(std::shared_ptr<const TrainingUnits> units, const std::vector<std::uint32_t>& which,
             const Layout& layout, std::string description);

  std::int64_t size() const override;
  std::int64_t seq_length() const override { return layout_.seq_length; }
  void sample(std::int64_t draw, std::span<std::int32_t> tokens, std::span<float> loss_mask) const override;
  bool separates_documents() const override { return layout_.pack && layout_.separate; }
  void document_starts(std::int64_t draw, std::vector<std::int32_t>& starts) const override;
  void document_marks(std::int64_t draw, std::vector<DocumentRole>& roles,
                      std::vector<float>& values) const override;
  double learned_tokens(std::int64_t draw) const override;
  std::string description() const override { return description_; }

  std::int64_t samples() const { return static_cast<std::int64_t>(learned_.size()); }  // P
  const Counts& counts() const { return counts_; }
  // Returns a hash of the tokens and masks of all samples, in the order before shuffling.
  std::uint64_t fingerprint() const;

 private:
  // Returns the number of tokens of a sample, with the label of its last input.
  std::int64_t room() const { return layout_.seq_length + (layout_.last_token_is_input ? 0 : 1); }
  std::vector<std::uint32_t> usable(const std::vector<std::uint32_t>& which);
  // Returns whether the unit has a learned token if it is not truncated.
  bool has_labels(std::uint32_t unit) const;
  void fill(const std::vector<std::uint32_t>& units);
  std::span<const std::uint32_t> contents(std::size_t sample) const;
  // Returns the texts of a sample, without the padding.
  std::vector<UnitDocument> texts_of(std::size_t sample) const;

  std::shared_ptr<const TrainingUnits> units_;
  Layout layout_;
  std::string description_;
  Counts counts_;
  std::vector<std::uint32_t> members_;  // indices of the units in all samples, concatenated
  std::vector<std::size_t> ends_;       // index in members_ after each sample's units
  std::vector<std::int32_t> learned_;   // what each sample adds to the divisor of the loss
  std::optional<EpochOrder> order_;     // the index of the sample of each draw
};

// Returns a writer of the chosen format. Throws the errors of choose_style, and kInvalid if the tokenizer
// lacks tokens of the format.
ConversationWriter conversation_writer(const SftOptions& options, const Tokenizer& tokenizer);

// Returns the units of conversations, which are learned whole.
std::shared_ptr<const TrainingUnits> conversation_units(TokenizedConversations all);

// Opens the data sets. Throws the errors of find_conversations, read_conversations and ConversationWriter,
// and kInvalid for a split without learned tokens.
Datasets open_sft_datasets(const SftOptions& options, const Tokenizer& tokenizer);

struct SftEpochs {
  std::int64_t samples = 0;
  // The training data that were read; pass them on as SftOptions::units.
  std::shared_ptr<const TrainingUnits> units;
};

// Returns the number of samples in `epochs` passes over the training data.
SftEpochs sft_samples_of_epochs(const SftOptions& options, const Tokenizer& tokenizer, double epochs);

// Reads files into units of another kind.
using ReadUnits =
    std::function<std::shared_ptr<const TrainingUnits>(const std::vector<InputFile>&, const ReadOptions&)>;
// Like the two functions above, for units of another kind.
Datasets open_unit_datasets(const SftOptions& options, const Tokenizer& tokenizer, const ReadUnits& read);
SftEpochs unit_samples_of_epochs(const SftOptions& options, const Tokenizer& tokenizer, double epochs,
                                 const ReadUnits& read);

}  // namespace primus::data
