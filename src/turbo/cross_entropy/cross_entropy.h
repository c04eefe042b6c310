// Weighted softmax cross-entropy over a chunk of tokens, and its gradient in the same pass:
//   loss[t] = weights[t] * (logsumexp(logits[t]) - logits[t, labels[t]])
//   d_logits[t] = weights[t] * (softmax(logits[t]) - onehot(labels[t]))
// The weights carry the loss mask and the normalisation, so the sum of loss over all chunks is the training
// loss. A token with weight zero contributes exactly zero, whatever its label and logits are.
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
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
