// One microbatch of token sequences on the host: Batch owns the data, and BatchView refers to it. Arrays are
// row-major [B, S]: B sequences of S tokens. The loader fills a Batch, and a training step reads it without
// copying.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace primus::data {

// The role of a document for objectives that compare texts or generate them.
enum class DocumentRole : std::uint8_t {
  kNone,        // padding or plain text
  kChosen,      // a preferred answer with its prompt
  kRejected,    // a rejected answer with its prompt
  kMismatched,  // an answer after the prompt of another example (KTO's KL term)
  kPrompt,      // a prompt without an answer; the loss rule generates the answer before the step
  kAnswer,      // a generated answer with its prompt; its value is the advantage of the answer
};

// A view of a Batch, valid as long as that Batch exists and is not refilled.
struct BatchView {
  std::span<const std::int32_t> tokens;  // [B, S] input tokens
  std::span<const std::int32_t> labels;  // [B, S] the token after each input
  std::span<const float> loss_mask;      // [B, S] 1 where the label counts in the loss, else 0
  // [B, S] position of each token in its document; empty: 0 to S - 1 in each sequence.
  std::span<const std::int32_t> positions = {};
  // Start index of each document in the B * S tokens; the first entry is 0 and the last is B * S (cu_seqlens
  // of variable-length attention). Each sequence starts a new document; attention stays within documents.
  // Empty: each sequence is one document.
  std::span<const std::int32_t> document_starts = {};
  // For objectives that compare texts: the role of each document of `document_starts`, and a value that
  // belongs to the document (a margin, a weight). Both have one entry per document, one less than
  // `document_starts`; both are empty for other objectives. A rejected document directly after a chosen one
  // is the other half of a pair.
  std::span<const DocumentRole> document_roles = {};
  std::span<const float> document_values = {};
  // For policy gradients: the index in the training data of each document's record, or -1 for padding.
  std::span<const std::int64_t> document_records = {};
  // For policy gradients: ln p(label) of each token, [B, S], 0 where loss_mask is 0. `sampled_log_probs` are
  // the decoder's values from the time when the answers were generated. `old_log_probs` are the training
  // pass's values under the weights that generated the answers; empty: these are the current weights.
  std::span<const float> sampled_log_probs = {}, old_log_probs = {};
  // For PPO: [B, S] the value, the advantage and the return of each token
  // (lm/train/objectives/rules/ppo_rule.h); empty for other objectives.
  std::span<const float> values = {}, token_advantages = {}, returns = {};
  // Divisor of the sum of masked losses; 0: the number of labels with loss_mask 1 in this microbatch. To make
  // a step's loss the mean over all learned labels of the step, set the divisor to the step's mean number of
  // learned labels per microbatch.
  double loss_divisor = 0;
};

struct Batch {
  std::vector<std::int32_t> tokens, labels;
  std::vector<float> loss_mask;
  std::vector<std::int32_t> positions, document_starts;
  std::vector<DocumentRole> document_roles;
  std::vector<float> document_values;
  std::vector<std::int64_t> document_records;
  std::vector<float> sampled_log_probs, old_log_probs;
  std::vector<float> values, token_advantages, returns;
  double loss_divisor = 0;

  operator BatchView() const {
    return {.tokens = tokens,
            .labels = labels,
            .loss_mask = loss_mask,
            .positions = positions,
            .document_starts = document_starts,
            .document_roles = document_roles,
            .document_values = document_values,
            .document_records = document_records,
            .sampled_log_probs = sampled_log_probs,
            .old_log_probs = old_log_probs,
            .values = values,
            .token_advantages = token_advantages,
            .returns = returns,
            .loss_divisor = loss_divisor};
  }

  // Copies the arrays of `from` into the existing buffers.
  void assign(const BatchView& from) {
    tokens.assign(from.tokens.begin(), from.tokens.end());
    labels.assign(from.labels.begin(), from.labels.end());
    loss_mask.assign(from.loss_mask.begin(), from.loss_mask.end());
    positions.assign(from.positions.begin(), from.positions.end());
    document_starts.assign(from.document_starts.begin(), from.document_starts.end());
    document_roles.assign(from.document_roles.begin(), from.document_roles.end());
    document_values.assign(from.document_values.begin(), from.document_values.end());
    document_records.assign(from.document_records.begin(), from.document_records.end());
    sampled_log_probs.assign(from.sampled_log_probs.begin(), from.sampled_log_probs.end());
    old_log_probs.assign(from.old_log_probs.begin(), from.old_log_probs.end());
    values.assign(from.values.begin(), from.values.end());
    token_advantages.assign(from.token_advantages.begin(), from.token_advantages.end());
    returns.assign(from.returns.begin(), from.returns.end());
    loss_divisor = from.loss_divisor;
  }
};

}  // namespace primus::data
