// Weighted softmax cross-entropy over a slice of tokens, and its gradient in the same pass:
//   loss[t] = weights[t] * (logsumexp(logits[t]) - logits[t, labels[t]])
//   d_logits[t] = weights[t] * (softmax(logits[t]) - onehot(labels[t]))
// The weights carry the loss mask and the normalisation, so the sum of loss over all slices is the training
// loss. A token with weight zero contributes exactly zero, whatever its label and logits are.
//
// With a cap, cap * tanh(logit / cap) (turbo/soft_cap) stands for each logit, and d_logits is the gradient of
// the logits as they are given: it takes the slope of the cap with it. Capped logits are never in memory.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct CrossEntropy {
  static constexpr KernelId kId = KernelId::kCrossEntropy;
  Tensor logits;    // [tokens, vocab] fp32
  Tensor labels;    // [tokens] int32
  Tensor weights;   // [tokens] fp32
  Tensor loss;      // [tokens] fp32 out
  Tensor d_logits;  // [tokens, vocab] fp32 or bf16 out; may be logits' memory when fp32; absent in evaluation
  float cap = 0;    // >= 0; 0: none
  void check() const;
  double flops() const { return 0; }
};

// The same where several ranks have some columns of the logits each, in three steps: every rank says what its
// columns come to, all ranks learn what all have said, and each works out the loss and the gradient of its
// columns from that. The loss is the same on all of them, to the bit.
inline constexpr std::int64_t kCrossEntropyValues = 3;  // that a part has for each token

struct CrossEntropyPart {
  static constexpr KernelId kId = KernelId::kCrossEntropyPart;
  Tensor logits;           // [tokens, columns] fp32: columns [first, first + columns) of the vocabulary
  Tensor labels;           // [tokens] int32
  Tensor part;             // [tokens, 3] fp32 out: the largest logit m, the sum of exp(logit - m), and the
                           // label's logit, or -infinity where the label is in no column; of capped logits
                           // where there is a cap
  std::int64_t first = 0;  // >= 0
  float cap = 0;           // as above
  void check() const;
  double flops() const { return 0; }
};

struct CrossEntropyOfParts {
  static constexpr KernelId kId = KernelId::kCrossEntropyOfParts;
  Tensor parts;                            // [parts, tokens, 3] fp32
  Tensor logits;                           // as above
  Tensor labels;                           // [tokens] int32
  Tensor weights;                          // [tokens] fp32
  Tensor loss;                             // [tokens] fp32 out
  Tensor d_logits;                         // as CrossEntropy's
  std::int64_t first = 0, vocabulary = 0;  // 0 <= first <= vocabulary - columns
  float cap = 0;                           // that of the parts
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
