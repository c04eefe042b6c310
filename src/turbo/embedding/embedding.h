// Token embedding: out[t, :] = table[tokens[t], :].
//
// The table may be a shard of the vocabulary: its rows are the tokens [first, first + rows) of `vocabulary`.
// Other tokens have zero rows in `out`. The sum of `out` over all shards is the complete embedding.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct EmbeddingForward {
  static constexpr KernelId kId = KernelId::kEmbeddingForward;
  Tensor tokens;                           // [tokens] int32, each in [0, vocab)
  Tensor table;                            // [vocab, hidden]
  Tensor out;                              // [tokens, hidden], the table's type
  std::int64_t first = 0, vocabulary = 0;  // vocabulary 0: the table is complete
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
  bool accumulate;                         // false: every row is assigned; rows without a token become zero
  std::int64_t first = 0, vocabulary = 0;  // vocabulary 0: the table is complete
  Tensor workspace;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
