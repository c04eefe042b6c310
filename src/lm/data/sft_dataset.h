// Supervised fine-tuning's data: conversations, of which the answers are learned (conversation_format.h).
//
// Each sample is a sequence of L = seq_length inputs and the label of its last one. Padded, it is one
// conversation; packed, it has as many as fit, first fit. A conversation of more than L + 1 tokens loses its
// end. What is left over is filled with the token that pads, which is never learned. A label counts where
// it is a token to learn of the same conversation as its input: the first token of an answer is one.
//
// There are P samples. Draw d of the run is sample d mod P of epoch d div P, whatever the mesh; with
// `shuffle` each epoch has an order of its own, which seed and epoch decide. So one number, of samples
// consumed, is all the state there is.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lm/data/conversation_files.h"
#include "lm/data/dataset.h"

namespace primus::data {

struct SftOptions {
  std::string dataset;                // conversation_files.h
  std::string train_split = "train";  // its name in a folder
  std::string format = "alpaca";      // chat_template.h: choose_style
  bool skip_bad = false;              // leaves broken records out
  // As Megatron Bridge makes its packed data: every text between two borders is encoded by itself, with what
  // begins a text in front; a conversation that is too long is left out; packs are filled in random order.
  bool inline_bos = false;
  bool pack = false;      // several conversations in a sequence ...
  bool separate = false;  // ... each for itself: positions count in it, and attention stays within
  bool shuffle = true;    // an order of its own for each epoch; else that of the files
  // Shares of data that have no files for validation and test, as "95,5,0". Empty: a hundredth of its
  // conversations is held out for validation, where validation samples are drawn and there are ten at least.
  std::string shares;
  std::int64_t seq_length = 0, seed = 1234;
  // What training, evaluations and the test will draw; a part of which nothing is drawn is not opened.
  std::int64_t train_samples = 0, valid_samples = 0, test_samples = 0;
  std::int64_t vocab_size = 0;  // refuses larger ids; 0: the tokenizer's
  int workers = 0;              // threads that tokenize; 0: one per core
  // The training files, where they are read already (sft_samples_of_epochs); else they are.
  std::shared_ptr<const TokenizedConversations> conversations;
  TokenizeProgressFn progress;
};

// Conversations as samples.
class SftDataset final : public Dataset {
 public:
  struct Layout {
    std::int64_t seq_length = 0, seed = 0;
    std::int32_t pad = 0;
    bool pack = false, separate = false, shuffle = false;
    bool leave_out_long = false, random_fit = false;
  };
  struct Counts {
    std::int64_t conversations = 0;                   // in samples
    std::int64_t truncated = 0;                       // of them, without their end
    std::int64_t too_long = 0, nothing_to_learn = 0;  // left out
    std::int64_t tokens = 0, learned = 0;
  };

  // `which`: the conversations it has. Error(kInvalid) where none of them has anything to learn.
  SftDataset(std::shared_ptr<const TokenizedConversations> conversations,
             const std::vector<std::uint32_t>& which, const Layout& layout, std::string description);
  ~SftDataset() override;

  std::int64_t size() const override;
  std::int64_t seq_length() const override { return layout_.seq_length; }
  void sample(std::int64_t draw, std::span<std::int32_t> tokens, std::span<float> loss_mask) const override;
  bool separates_documents() const override { return layout_.pack && layout_.separate; }
  void document_starts(std::int64_t draw, std::vector<std::int32_t>& starts) const override;
  double learned_tokens(std::int64_t draw) const override;
  std::string description() const override { return description_; }

  std::int64_t samples() const { return static_cast<std::int64_t>(learned_.size()); }  // P
  const Counts& counts() const { return counts_; }
  // Of tokens and mask of all samples, in their order without shuffling.
  std::uint64_t fingerprint() const;

 private:
  struct Order;
  std::int64_t kept_tokens(std::uint32_t conversation) const;
  std::vector<std::uint32_t> usable(const std::vector<std::uint32_t>& which);
  void fill(const std::vector<std::uint32_t>& conversations);
  // The sample of a draw.
  std::size_t sample_of(std::int64_t draw) const;
  std::span<const std::uint32_t> contents(std::size_t sample) const;

  std::shared_ptr<const TokenizedConversations> conversations_;
  Layout layout_;
  std::string description_;
  Counts counts_;
  std::vector<std::uint32_t> members_;  // conversations, sample by sample
  std::vector<std::size_t> ends_;       // of each sample, in members_
  std::vector<std::int32_t> learned_;   // labels, of each sample
  std::unique_ptr<Order> order_;        // of the epochs in use
};

// Style of the chosen format. Errors of choose_style, and kInvalid where the tokenizer cannot write it.
ConversationWriter conversation_writer(const SftOptions& options, const Tokenizer& tokenizer);

// Errors as find_conversations, read_conversations and ConversationWriter; kInvalid for a part without
// anything to learn.
Datasets open_sft_datasets(const SftOptions& options, const Tokenizer& tokenizer);

struct SftEpochs {
  std::int64_t samples = 0;
  std::shared_ptr<const TokenizedConversations> conversations;  // for SftOptions
};

// Samples in so many passes over the training data.
SftEpochs sft_samples_of_epochs(const SftOptions& options, const Tokenizer& tokenizer, double epochs);

}  // namespace primus::data
