// Which keys each query attends to, by the lightning indexer of DeepSeek-V3.2 (arXiv:2512.02556,
// section 2.1):
//   score[t, s] = sum over heads h of w[t, h] * max(0, q[t, h] · k[s]),
// and the query's list is the top_k rows with the highest scores of those that it sees; of equal scores the
// lower row comes first. The list is in ascending order of rows, and -1 behind them where a query sees fewer.
//
// Operands are fp32 or bf16, w may be fp32 beside bf16; sums are in fp32, and their order depends on the
// shape alone. Scores exist for a slice of the queries at a time. A NaN among scores counts as the highest.
#pragma once

#include "tensor/tensor.h"
#include "turbo/attention/paged_attention.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct IndexerShape {
  std::int64_t batch;  // sequences
  std::int64_t seq_q;  // queries of each
  std::int64_t seq_k;  // rows of keys of each
  std::int64_t heads, head_dim;
  std::int64_t top_k;  // places of a list
  // A row stands for so many tokens, and is seen from the last of them on: query i of a sequence sees the
  // first (q_first + i + 1) / stride rows.
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
  // Of each query [tokens] int32: the first row of its own sequence that it sees, and the first that it does
  // not see any more. Absent: 0, and what stride and position say.
  Tensor first_row, end_row;
  Tensor selected;  // [tokens, top_k] int32 out: rows of k, so those of sequence b are from b*seq_k on
  Tensor workspace;
  void check() const;
  double flops() const;
};

// Generation: the new tokens of many sequences, whose keys lie in pages already, those of the new ones too.
// A query sees the keys of its sequence up to its own. Lists hold rows of the pages: what SelectedAttention
// reads of the latents that lie in pages likewise. Rows that belong to no sequence get empty lists.
struct PagedIndexerSelect {
  static constexpr KernelId kId = KernelId::kPagedIndexerSelect;
  PagedSequences sequences;
  std::int64_t heads, head_dim, top_k;
  Tensor q;         // [T, heads*head_dim]
  Tensor pages;     // [rows of all pages, head_dim], q's type
  Tensor w;         // [T, heads]
  Tensor selected;  // [T, top_k] int32 out
  Tensor workspace;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
