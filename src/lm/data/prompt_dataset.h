// Data for reinforcement learning: prompts, whose answers the model generates during training, and their
// records (prompt.h), whose columns reward functions read.
//
// Each sample is one row of L = seq_length tokens: a document with the role DocumentRole::kPrompt, then
// padding. Let G = num_generations. Without repeated steps, sample i of the run is the prompt at draw i div G
// of EpochOrder, so each prompt is repeated G times in succession, and the samples of the run depend only on
// the data and the seed, for every mesh. If several steps learn from the same answers (num_iterations), the
// samples of each such step are the samples of the first such step.
//
// A prompt that is longer than max_prompt_length is left out and counted, because a truncated question has
// another answer.
//
// Memory: the token ids of all prompts, and the text of all records. A record is parsed when it is looked up.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "lm/data/conversation_format.h"
#include "lm/data/dataset.h"
#include "lm/data/epoch_order.h"
#include "lm/data/prompt_rows.h"

namespace primus::data {

// Prompts and their records. Indices are in [0, size()), in the order of the files. Thread-safety: all
// methods may be called from any number of threads at once.
class Prompts {
 public:
  std::int64_t size() const { return static_cast<std::int64_t>(id_ends_.size()); }
  std::span<const std::int32_t> prompt_ids(std::int64_t index) const;
  // Returns the text of the prompt's tokens, with special tokens.
  std::string prompt_text(std::int64_t index) const;
  // Returns whether prompts are written in a conversation format; otherwise they are plain texts.
  bool are_conversations() const { return writer_ != nullptr; }
  // Returns the text of a prompt that is a plain text, without special tokens.
  std::string plain_text(std::int64_t index) const;
  // Returns the whole record, with all its columns.
  nlohmann::json record(std::int64_t index) const;
  // Returns the messages of the prompt, with its tools.
  Conversation conversation(std::int64_t index) const;
  // Returns the tokens that follow a generated answer: see ConversationWriter::continuation(). For prompts
  // that are plain texts, the tokens encode the texts of the messages.
  std::vector<std::int32_t> continuation(const Conversation& conversation, std::size_t answer) const;

  // Returns, for each key that is not part of the prompt, the number of records that have this key.
  const std::map<std::string, std::int64_t>& columns() const { return columns_; }
  std::int64_t longest() const { return longest_; }  // number of tokens of the longest prompt
  // Returns the ids that end an answer: the end of a turn in the format of the prompts, and the end of a
  // text.
  const std::vector<std::int32_t>& end_ids() const { return end_ids_; }
  // Sentences for Datasets::notes and Datasets::facts.
  const std::vector<std::string>& notes() const { return notes_; }
  const std::vector<std::string>& facts() const { return facts_; }
  // Returns a hash of the ids and records.
  std::uint64_t fingerprint() const;

 private:
  friend class PromptFiles;
  const Tokenizer* tokenizer_ = nullptr;
  std::shared_ptr<const ConversationWriter> writer_;  // null: plain texts
  std::string tools_;                                 // PromptOptions::tools
  std::vector<std::int32_t> ids_, end_ids_;
  std::string records_;
  std::vector<std::size_t> id_ends_, record_ends_;  // indices in ids_ and records_ after each prompt
  std::map<std::string, std::int64_t> columns_;
  std::int64_t longest_ = 0;
  std::vector<std::string> notes_, facts_;
};

struct PromptOptions {
  std::string dataset;                // file, glob or folder: see conversation_files.h
  std::string train_split = "train";  // name prefix of the training files in a folder
  std::string format = "auto";        // see choose_prompt_style in chat_template.h
  std::string tools;                  // JSON list of the tools of records without tools; empty: none
  bool skip_bad = false;              // whether broken records are skipped and counted
  bool shuffle = true;                // true: a different order in each epoch; false: the order of the files
  std::int64_t seq_length = 0, num_generations = 1, seed = 1234;
  std::int64_t max_prompt_length = 0;  // number of tokens, at least 1
  std::int64_t step_samples = 1;       // number of samples of a step; used if num_iterations is above 1
  std::int64_t num_iterations = 1;     // number of consecutive steps with the same samples
  int workers = 0;                     // number of tokenizing threads; 0: one per core
  // The prompts, if prompt_samples_of_epochs() has already read them; otherwise null.
  std::shared_ptr<const Prompts> prompts;
  TokenizeProgressFn progress;
};

class PromptDataset final : public PromptRows {
 public:
  // Returns the data set as the class that open_prompt_dataset() makes.
  static const PromptDataset& of(const Dataset& dataset);

  PromptDataset(std::shared_ptr<const Prompts> prompts, const PromptOptions& options, std::int32_t pad);

  const std::shared_ptr<const Prompts>& prompts() const { return prompts_; }

  // The samples repeat without end.
  std::int64_t size() const override;
  std::int64_t seq_length() const override { return seq_length_; }
  // The loss mask is 0: no label of a prompt is learned.
  void sample(std::int64_t index, std::span<std::int32_t> tokens, std::span<float> loss_mask) const override;
  void document_starts(std::int64_t index, std::vector<std::int32_t>& starts) const override;
  // Returns 1: each sample is one answer.
  double learned_tokens(std::int64_t /*index*/) const override { return 1; }
  std::string description() const override { return description_; }

 private:
  std::int64_t record_of(std::int64_t index) const override;

  std::shared_ptr<const Prompts> prompts_;
  std::int64_t seq_length_, num_generations_, step_samples_, num_iterations_;
  std::int32_t pad_;
  std::string description_;
  std::shared_ptr<const EpochOrder> order_;
};

// Returns the order in which a run reads the prompts: draw i is the index of prompt i.
std::shared_ptr<const EpochOrder> prompt_order(const Prompts& prompts, const PromptOptions& options);

// Opens the training data; `train` is a PromptDataset. There are no data for validation and test. `tokenizer`
// must outlive the data set. Errors: as find_conversations, choose_prompt_style, ConversationWriter and
// read_prompt, and kInvalid if all prompts are too long.
Datasets open_prompt_dataset(const PromptOptions& options, const Tokenizer& tokenizer);

struct PromptEpochs {
  std::int64_t samples = 0;
  std::shared_ptr<const Prompts>
      prompts;  // the prompts that were read; pass them on as PromptOptions::prompts
};

// Returns the number of samples in `epochs` passes over the prompts: num_generations * num_iterations per
// prompt.
PromptEpochs prompt_samples_of_epochs(const PromptOptions& options, const Tokenizer& tokenizer,
                                      double epochs);

}  // namespace primus::data
