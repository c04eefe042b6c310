// Attention of each query over its own list of keys (DeepSeek-V3.2's sparse attention in absorbed form,
// arXiv:2512.02556). All heads of a query share the list and its keys. A key is a row of kv: a latent, whose
// first columns are the value.
//
// For each query, `selected` holds row numbers of kv without repetition. Entries of -1 are empty, and may
// have any position in the list. A query sees exactly the keys of its list; the kernel does not mask by
// position, document or sequence. A query with an empty list gets out = 0 and lse = -infinity, or its sink.
//
// All operands are fp32, or all are bf16; sums are in fp32 and results are rounded once. The order of all
// sums depends only on the shape. AttentionBackwardSinks (turbo/attention) computes the gradients of sinks.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct SelectedAttentionShape {
  std::int64_t tokens;    // queries
  std::int64_t rows;      // rows of kv
  std::int64_t selected;  // length of a query's list
  std::int64_t heads;
  std::int64_t key_dim;    // columns per head of q, and columns of kv
  std::int64_t value_dim;  // the first value_dim columns of kv are the value; <= key_dim
  float scale;             // multiplies q·k
  void check(KernelId kernel) const;
};

struct SelectedAttentionForward {
  static constexpr KernelId kId = KernelId::kSelectedAttentionForward;
  SelectedAttentionShape shape;
  Tensor q;         // [tokens, heads*key_dim]
  Tensor kv;        // [rows, key_dim]
  Tensor selected;  // [tokens, selected] int32
  Tensor sinks;     // [heads] in q's type: logits without a value; absent: there are none
  Tensor out;       // [tokens, heads*value_dim]
  Tensor lse;  // [heads, tokens] fp32: log-sum-exp of the scaled scores and the sink; absent if no backward
               // follows
  Tensor workspace;
  void check() const;
  double flops() const;  // assumes that lists have no empty entries
};

struct SelectedAttentionBackward {
  static constexpr KernelId kId = KernelId::kSelectedAttentionBackward;
  SelectedAttentionShape shape;
  Tensor q, kv, selected;  // as in the forward pass
  Tensor out, lse, d_out;  // out and lse (with sinks) of the forward pass; d_out has the shape of out
  Tensor d_q, d_kv;        // shapes of q and kv; assigned
  // Number of queries whose contributions to d_kv are in the workspace at a time. It does not change results.
  // If 0, the device chooses the number.
  std::int64_t queries_at_once = 0;
  Tensor workspace;
  void check() const;
  double flops() const;  // 2.5 x the forward pass: five products instead of two
};

}  // namespace primus::turbo
