// Selects the keys that each query attends to, by the lightning indexer of DeepSeek-V3.2 (arXiv:2512.02556,
// section 2.1):
//   score[t, s] = sum over heads h of w[t, h] * max(0, q[t, h] · k[s]).
// The list of a query holds the top_k visible rows by score; of two rows with equal scores, the lower row is
// preferred. Rows are in ascending order, followed by -1 if the query sees fewer than top_k rows.
//
// Operands are fp32 or bf16; w may be fp32 with bf16 operands. Sums are in fp32, in an order that depends
// only on the shape. At any time, memory holds scores of only some of the queries. NaN counts as the highest
// score.
#pragma once

#include "tensor/tensor.h"
#include "turbo/attention/paged_attention.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct IndexerShape {
  std::int64_t batch;  // sequences
  std::int64_t seq_q;  // queries per sequence
  std::int64_t seq_k;  // key rows per sequence
  std::int64_t heads, head_dim;
  std::int64_t top_k;  // list length
  // A key row represents `stride` tokens. A query sees the row if the query is not before the last of these
  // tokens: query i of a sequence sees the first (q_first + i + 1) / stride rows.
  std::int64_t stride = 1;
  std::int64_t q_first = 0;  // position of the first query within its sequence

  std::int64_t tokens() const { return batch * seq_q; }
  void check(KernelId kernel) const;
};

struct IndexerSelect {
  static constexpr KernelId kId = KernelId::kIndexerSelect;
  IndexerShape shape;
  Tensor q;  // [tokens, heads*head_dim]
  Tensor k;  // [batch*seq_k, head_dim]
  Tensor w;  // [tokens, heads]
  // [tokens] int32: each query sees only rows [first_row, end_row) of its sequence. Absent: first_row is 0,
  // and end_row follows from `stride` and the position.
  Tensor first_row, end_row;
  Tensor selected;  // output: [tokens, top_k] int32: rows of k; rows of sequence b begin at b*seq_k
  Tensor workspace;
  void check() const;
  double flops() const;
};

// For generation: selects keys for new tokens of many sequences. The pages already hold all keys, including
// those of the new tokens. A query sees the keys of its sequence up to its own position. `selected` contains
// row numbers of `pages`. SelectedAttention reads the latents of the same rows. Queries that belong to no
// sequence get empty lists.
struct PagedIndexerSelect {
  static constexpr KernelId kId = KernelId::kPagedIndexerSelect;
  PagedSequences sequences;
  std::int64_t heads, head_dim, top_k;
  Tensor q;         // [T, heads*head_dim]
  Tensor pages;     // [rows of all pages, head_dim], q's type
  Tensor w;         // [T, heads]
  Tensor selected;  // output: [T, top_k] int32
  Tensor workspace;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
