// Weighted softmax cross-entropy over a slice of tokens, and its gradient in the same pass:
//   loss[t] = weights[t] * (logsumexp(logits[t]) - logits[t, labels[t]])
//   d_logits[t] = weights[t] * (softmax(logits[t]) - onehot(labels[t]))
// The weights include the loss mask and the normalisation: the sum of `loss` over all slices is the training
// loss. A token with weight zero contributes exactly zero, even if its label is invalid or its logits are not
// finite.
//
// A loss may also weigh the entropy H[t] = -sum p ln p of each token's distribution. The vocabulary-parallel
// calls below then compute
//   loss[t] = weights[t] * (-ln p(labels[t])) + entropy_weights[t] * H[t]
// and its gradient: dH/dlogit[j] = -p[j] * (ln p[j] + H). With one part, these calls serve a single rank.
//
// With a cap, each logit is replaced by cap * tanh(logit / cap) (turbo/soft_cap). d_logits is the gradient of
// the uncapped logits and includes the derivative of the cap. Capped logits are never written to memory.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct CrossEntropy {
  static constexpr KernelId kId = KernelId::kCrossEntropy;
  Tensor logits;    // [tokens, vocab] fp32
  Tensor labels;    // [tokens] int32
  Tensor weights;   // [tokens] fp32
  Tensor loss;      // output: [tokens] fp32
  Tensor d_logits;  // output: [tokens, vocab] fp32 or bf16; fp32 may use the memory of logits; absent in
                    // evaluation
  float cap = 0;    // >= 0; 0: no cap
  void check() const;
  double flops() const { return 0; }
};

// Vocabulary-parallel cross-entropy: each rank holds some columns of the logits. In three steps, every rank
// computes the partial results of its columns, the ranks all-gather them, and each rank computes the loss and
// the gradient of its columns. The loss is bitwise identical on all ranks.
inline constexpr std::int64_t kCrossEntropyValues = 3;  // values per token in a partial result
inline constexpr std::int64_t kEntropyValues = 5;       // the number of values if entropies are computed

struct CrossEntropyPart {
  static constexpr KernelId kId = KernelId::kCrossEntropyPart;
  Tensor logits;  // [tokens, columns] fp32: columns [first, first + columns) of the vocabulary
  Tensor labels;  // [tokens] int32
  // output: [tokens, 3] fp32: the largest logit m, the sum of exp(logit - m), and the label's logit, or
  // -infinity if these columns do not include the label. With a cap, these values are computed from capped
  // logits. Or [tokens, 5]: also the sums of exp(logit - m) * (logit - m) and of exp(logit - m)^2.
  Tensor part;
  std::int64_t first = 0;  // >= 0
  float cap = 0;           // as in CrossEntropy
  void check() const;
  double flops() const { return 0; }
};

struct CrossEntropyOfParts {
  static constexpr KernelId kId = KernelId::kCrossEntropyOfParts;
  Tensor parts;                            // [parts, tokens, 3] fp32; [parts, tokens, 5] for entropies
  Tensor logits;                           // as in CrossEntropyPart
  Tensor labels;                           // [tokens] int32
  Tensor weights;                          // [tokens] fp32
  Tensor loss;                             // output: [tokens] fp32
  Tensor d_logits;                         // as in CrossEntropy
  std::int64_t first = 0, vocabulary = 0;  // 0 <= first <= vocabulary - columns
  float cap = 0;                           // the cap with which the parts were computed
  Tensor entropy_weights = {};  // [tokens] fp32; absent: 0. A token is masked if both weights are 0
  Tensor entropies = {};        // output: [tokens] fp32: H of each token, 0 if masked; or absent
  Tensor collisions = {};       // output: [tokens] fp32: sum of squared probabilities, 0 if masked; or absent
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
