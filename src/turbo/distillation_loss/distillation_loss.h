// The loss of a student that learns the distribution of a teacher, and the loss's gradient. For each token, q
// is the student's distribution and p is the teacher's, both of logits divided by a temperature T:
//   q = softmax(student / T), p = softmax(teacher / T), m = (1 - beta) q + beta p
//   D = beta KL(p || m) + (1 - beta) KL(q || m)     the generalized Jensen-Shannon divergence
//   beta = 0: D = KL(p || q); beta = 1: D = KL(q || p)
//   loss = weight * ((1 - label_share) D + label_share * (-ln softmax(student)[label]))
// D is that of TRL's GKD trainer ("On-Policy Distillation of Language Models", Agarwal et al., 2024), which
// does not multiply by T^2. The loss of the label has no temperature.
//
// The vocabulary may be divided over ranks. In three calls, every rank computes partial results of its
// columns, and after each of the first two calls, the ranks all-gather these results. One rank makes the same
// calls with one part. The loss has the same bits on all ranks.
//
// A token with weight zero contributes exactly zero, even if its label is invalid or its logits are not
// finite. A cap replaces logits by cap * tanh(logit / cap) (turbo/soft_cap), and d_logits is the gradient of
// the uncapped logits.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct DistillationForm {
  float beta = 0.5F;      // in [0, 1]
  float temperature = 1;  // above 0
  float label_share = 0;  // in [0, 1]
  float cap = 0;          // cap of the student's logits; 0: none
  float teacher_cap = 0;  // cap of the teacher's logits; 0: none
  bool valid() const;
};

inline constexpr std::int64_t kDistillationValues = 6;     // values per token of the first partial result
inline constexpr std::int64_t kDistillationSumValues = 2;  // values per token of the second partial result

struct DistillationPart {
  static constexpr KernelId kId = KernelId::kDistillationPart;
  Tensor student;  // [tokens, columns] fp32 logits: columns [first, first + columns) of the vocabulary
  Tensor teacher;  // [tokens, columns] fp32 logits of the same columns
  Tensor labels;   // [tokens] int32
  // output: [tokens, 6] fp32: the student's largest logit s, the sums of exp((logit - s) / T) and of
  // exp(logit - s), the label's logit (-infinity if it is in other columns), the teacher's largest logit t,
  // and the sum of exp((logit - t) / T).
  Tensor part;
  std::int64_t first = 0;  // >= 0
  DistillationForm form = {};
  void check() const;
  double flops() const { return 0; }
};

struct DistillationSums {
  static constexpr KernelId kId = KernelId::kDistillationSums;
  Tensor parts;             // [parts, tokens, 6] fp32
  Tensor student, teacher;  // as in DistillationPart
  Tensor weights;           // [tokens] fp32
  // output: [tokens, 2] fp32: the terms of these columns in KL(p || m) and in KL(q || m); 0 if the token is
  // masked. With beta = 0 or 1, only the divergence of the loss is computed.
  Tensor sums;
  DistillationForm form = {};
  void check() const;
  double flops() const { return 0; }
};

struct DistillationLoss {
  static constexpr KernelId kId = KernelId::kDistillationLoss;
  Tensor parts;             // [parts, tokens, 6] fp32
  Tensor sums;              // [parts, tokens, 2] fp32
  Tensor student, teacher;  // as in DistillationPart
  Tensor labels;            // [tokens] int32
  Tensor weights;           // [tokens] fp32
  Tensor loss;              // output: [tokens] fp32
  Tensor d_logits;  // output: [tokens, columns] fp32 or bf16; fp32 may use the memory of `student`; absent in
                    // evaluation
  std::int64_t first = 0, vocabulary = 0;  // 0 <= first <= vocabulary - columns
  DistillationForm form = {};
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
