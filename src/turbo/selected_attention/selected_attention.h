// Attention of each query over a list of keys that was chosen for it (DeepSeek-V3.2's sparse attention in its
// absorbed form, arXiv:2512.02556). All heads of a query share the list, and one key for each of its rows:
// a latent, whose leading columns are the value as well.
//
// `selected` holds, for each query, row numbers of kv, each at most once, and anywhere among them -1 for
// places that stay empty. Whatever decides what a query may see (order, documents, sequences) decides what is
// on its list. A query with an empty list gets out = 0 and lse = -infinity, or its sink.
//
// Operands are fp32 or bf16, all of one type; sums are in fp32 and results rounded once. The order of all
// sums depends on the shape alone. Gradients of sinks are AttentionBackwardSinks' (turbo/attention).
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct SelectedAttentionShape {
  std::int64_t tokens;    // queries
  std::int64_t rows;      // of kv
  std::int64_t selected;  // places of a query's list
  std::int64_t heads;
  std::int64_t key_dim;    // of q and kv
  std::int64_t value_dim;  // leading columns of kv that are the value, <= key_dim
  float scale;             // multiplies q·k
  void check(KernelId kernel) const;
};

struct SelectedAttentionForward {
  static constexpr KernelId kId = KernelId::kSelectedAttentionForward;
  SelectedAttentionShape shape;
  Tensor q;         // [tokens, heads*key_dim]
  Tensor kv;        // [rows, key_dim]
  Tensor selected;  // [tokens, selected] int32
  Tensor sinks;     // [heads] in q's type: a logit that has no value; absent: none
  Tensor out;       // [tokens, heads*value_dim]
  Tensor lse;       // [heads, tokens] fp32: log-sum-exp of the scaled scores, and the sink; absent when no
                    // backward follows
  Tensor workspace;
  void check() const;
  double flops() const;  // of full lists
};

struct SelectedAttentionBackward {
  static constexpr KernelId kId = KernelId::kSelectedAttentionBackward;
  SelectedAttentionShape shape;
  Tensor q, kv, selected;  // as in the forward; what sinks did is in lse
  Tensor out, lse, d_out;  // of the forward; d_out like out
  Tensor d_q, d_kv;        // like q and kv, assigned
  // So many queries' parts of d_kv are in the workspace at a time, which changes no bit; 0: a device's
  // choice.
  std::int64_t queries_at_once = 0;
  Tensor workspace;
  void check() const;
  double flops() const;  // 2.5 x the forward: five products against two
};

}  // namespace primus::turbo
