// Token embedding: out[t, :] = table[tokens[t], :].
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct EmbeddingForward {
  static constexpr KernelId kId = KernelId::kEmbeddingForward;
  Tensor tokens;  // [tokens] int32, each in [0, vocab)
  Tensor table;   // [vocab, hidden]
  Tensor out;     // [tokens, hidden], the table's type
  void check() const;
  double flops() const { return 0; }
};

// d_table[v, :] (+)= sum of d_out[t, :] over t with tokens[t] == v, in token order (deterministic).
struct EmbeddingBackwardWeight {
  static constexpr KernelId kId = KernelId::kEmbeddingBackwardWeight;
  Tensor tokens;    // [tokens] int32
  Tensor d_out;     // [tokens, hidden]
  Tensor d_table;   // [vocab, hidden] fp32
  bool accumulate;  // false: every row is assigned, rows without a token to zero
  Tensor workspace;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
