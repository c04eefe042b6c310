// One microbatch of token sequences on the host: what owns it, and a view of it. Row-major [B, S], B
// sequences of S tokens. The loader fills one, a step reads it; in between nobody renames or copies anything.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace primus::data {

// Valid as long as what it was taken from.
struct BatchView {
  std::span<const std::int32_t> tokens;  // [B, S] inputs
  std::span<const std::int32_t> labels;  // [B, S] the tokens one position later
  std::span<const float> loss_mask;      // [B, S] 1 where the label counts, 0 where it does not
  // [B, S] each token's place in its document; empty: 0 to S - 1 in each sequence.
  std::span<const std::int32_t> positions = {};
  // Where each document begins in the B * S tokens, 0 first and B * S last (cu_seqlens of variable-length
  // attention). A sequence begins a document, and tokens attend within theirs. Empty: every sequence is one.
  std::span<const std::int32_t> document_starts = {};
  // What the sum of its masked losses is divided by; 0: its own number of learned labels. The mean number of
  // all microbatches of a step makes the step's loss the mean over all of its learned labels.
  double loss_divisor = 0;
};

struct Batch {
  std::vector<std::int32_t> tokens, labels;
  std::vector<float> loss_mask;
  std::vector<std::int32_t> positions, document_starts;
  double loss_divisor = 0;

  operator BatchView() const { return {tokens, labels, loss_mask, positions, document_starts, loss_divisor}; }

  // Copies into the memory that is there.
  void assign(const BatchView& from) {
    tokens.assign(from.tokens.begin(), from.tokens.end());
    labels.assign(from.labels.begin(), from.labels.end());
    loss_mask.assign(from.loss_mask.begin(), from.loss_mask.end());
    positions.assign(from.positions.begin(), from.positions.end());
    document_starts.assign(from.document_starts.begin(), from.document_starts.end());
    loss_divisor = from.loss_divisor;
  }
};

}  // namespace primus::data
