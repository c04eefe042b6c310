// Data for learning from the trained model's own answers to conversations (on-policy distillation).
//
// The units of the data are conversations, whose last answer the model generates again, or prompts without
// answers. A conversation is left out if a sample has no room for the tokens before its last answer and for a
// generated answer, or if there are more of these tokens than max_prompt_length. The answers that the data
// set reads, order and held-out data are as in supervised fine-tuning (sft_dataset.h).
//
// Each sample of the training data is a row with one conversation: a document with the role
// DocumentRole::kPrompt, and a document of padding. The record of a row is its sample number, so that every
// rank can look up each row of a step.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lm/data/prompt_rows.h"
#include "lm/data/sft_dataset.h"

namespace primus::data {

// The tokens of one row up to its last learned token.
struct LearnedRow {
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> learned;  // one entry per token: 1 if the token is learned
};

class OnPolicyDataset final : public PromptRows {
 public:
  // Returns the data set as the class that open_on_policy_datasets() makes.
  static const OnPolicyDataset& of(const Dataset& dataset);

  explicit OnPolicyDataset(std::unique_ptr<const Dataset> rows) : rows_(std::move(rows)) {}

  // Returns the tokens before the last answer of a row.
  std::vector<std::int32_t> prompt(std::int64_t record) const;
  // Returns a row with its answers. Not for data without answers.
  LearnedRow conversation(std::int64_t record) const;

  std::int64_t size() const override { return rows_->size(); }
  std::int64_t seq_length() const override { return rows_->seq_length(); }
  void sample(std::int64_t index, std::span<std::int32_t> tokens, std::span<float> loss_mask) const override {
    rows_->sample(index, tokens, loss_mask);
  }
  void document_starts(std::int64_t index, std::vector<std::int32_t>& starts) const override;
  double learned_tokens(std::int64_t index) const override { return rows_->learned_tokens(index); }
  std::string description() const override { return rows_->description(); }

 private:
  std::int64_t record_of(std::int64_t index) const override { return index; }

  const std::unique_ptr<const Dataset> rows_;
};

// Opens the data sets; `train` is an OnPolicyDataset. `options.own_answers` must be set. Errors: as
// open_sft_datasets, and those of read_prompt for data without answers.
Datasets open_on_policy_datasets(const SftOptions& options, const Tokenizer& tokenizer);

// Returns the number of conversations or prompts in `epochs` passes over the training data.
SftEpochs on_policy_samples_of_epochs(const SftOptions& options, const Tokenizer& tokenizer, double epochs);

// Returns the ids that end an answer: the end of a turn in the format of the conversations, and the end of a
// text.
std::vector<std::int32_t> end_ids_of_answers(const SftOptions& options, const Tokenizer& tokenizer);

}  // namespace primus::data
