// Token embedding: out[t, :] = table[tokens[t], :].
//
// The table may be a part of a vocabulary: its rows are the tokens [first, first + rows) of `vocabulary`. The
// rows of other tokens are zero, so that the sum over all parts is the whole embedding.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct EmbeddingForward {
  static constexpr KernelId kId = KernelId::kEmbeddingForward;
  Tensor tokens;                           // [tokens] int32, each in [0, vocab)
  Tensor table;                            // [vocab, hidden]
  Tensor out;                              // [tokens, hidden], the table's type
  std::int64_t first = 0, vocabulary = 0;  // vocabulary 0: the table is all of it
  void check() const;
  double flops() const { return 0; }
};

// d_table[v, :] (+)= sum of d_out[t, :] over t with tokens[t] == v, in token order (deterministic) and in
// fp32, rounded once.
struct EmbeddingBackwardWeight {
  static constexpr KernelId kId = KernelId::kEmbeddingBackwardWeight;
  Tensor tokens;                           // [tokens] int32
  Tensor d_out;                            // [tokens, hidden]
  Tensor d_table;                          // [vocab, hidden] fp32 or bf16
  bool accumulate;                         // false: every row is assigned, rows without a token to zero
  std::int64_t first = 0, vocabulary = 0;  // vocabulary 0: the table is all of it
  Tensor workspace;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
