// Measures how well a model predicts a text (mean loss, perplexity, bits per byte), or how well it predicts
// the answers of conversations.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lm/data/conversation_files.h"
#include "lm/generate/loss_evaluator.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus {

struct EvaluateProgress {
  std::int64_t tokens = 0;  // number of tokens predicted so far
  double loss = 0;          // mean loss over these tokens
  double share = 0;         // completed fraction of the work, 0 to 1, in bytes or documents
};

struct EvaluateOptions {
  // Text and JSON-lines files, folders and globs (lm/data/corpus.h), or prefixes of .bin/.idx files.
  std::vector<std::string> inputs;
  std::string json_key = "text";
  std::int64_t max_tokens = 0;  // max number of tokens to predict; 0: no limit
  std::function<void(const EvaluateProgress&)> progress = {};
};

struct LossReport {
  double loss = 0;                      // mean loss over the tokens, in nats
  double perplexity = 0;                // exp(loss)
  std::optional<double> bits_per_byte;  // loss per byte of UTF-8 text, in bits, which is comparable between
                                        // tokenizers
  std::int64_t tokens = 0;
  std::int64_t documents = 0;  // number of documents, including one that max_tokens cuts
  std::uint64_t bytes = 0;
};

// All documents form one text, separated by the tokenizer's end-of-document token as in training. `tokenizer`
// may be null for .bin/.idx files; in this case, the number of bytes of text is unknown. Throws
// Error(kInvalid) if there is no data, for broken JSON lines ("file:line"), and for a token outside the
// vocabulary; for .bin/.idx files, the message gives the token's position.
LossReport evaluate_loss(LossEvaluator& evaluator, const Tokenizer* tokenizer,
                         const EvaluateOptions& options);

struct ConversationReport {
  double loss = 0;                 // mean loss over the tokens of the answers, in nats
  double perplexity = 0;           // exp(loss)
  std::int64_t tokens = 0;         // number of tokens in answers, including their end tokens
  std::int64_t conversations = 0;  // number of conversations with at least one such token
  // Number of conversations whose end was cut off, and number of conversations that were skipped because they
  // have no answer.
  std::int64_t truncated = 0, without_answer = 0;
};

// Computes the validation loss as fine-tuning does: each conversation is evaluated separately, and only
// tokens that training would learn are evaluated. The end of a conversation longer than the evaluator's
// sequence is cut off, as in training. Throws Error(kInvalid) if no token is evaluated.
ConversationReport evaluate_conversations(LossEvaluator& evaluator,
                                          const data::TokenizedConversations& conversations,
                                          std::int64_t sequence,
                                          const std::function<void(const EvaluateProgress&)>& progress = {});

}  // namespace primus
