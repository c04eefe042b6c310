// Attention of new tokens over a paged cache. The keys and values of many sequences are in pages of a fixed
// number of tokens, and a block table names the pages of each sequence (PagedAttention, Kwon et al. 2023).
// Memory is allocated page by page, and sequences of any length share the memory.
//
// Lengths and tables are tensors on the device. Therefore the launch is the same for every decoding step, and
// a graph can record the launch. Masking is causal, as in turbo/attention/attention.h.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// Maps each row of a pass to its sequence, and each sequence to its pages. B is the number of sequences, T
// the number of rows.
struct PagedSequences {
  static constexpr std::int64_t kPageMultiple = 64;  // a page size is a power of two and at least this number

  // [B + 1] int32, starting at 0. Rows [query_starts[b], query_starts[b + 1]) are the new tokens of sequence
  // b, in order. This range may be empty. Rows from query_starts[B] to T belong to no sequence.
  Tensor query_starts;
  Tensor key_lengths;  // [B] int32: number of tokens of each sequence, including its new tokens
  Tensor block_table;  // [B, blocks] int32: the page of tokens [i * page_size, (i + 1) * page_size)
  std::int64_t page_size;
  bool single = false;  // whether each sequence has at most one new token

  std::int64_t batch() const { return key_lengths.elements(); }
  std::int64_t blocks() const { return block_table.cols(); }
  std::int64_t capacity() const { return blocks() * page_size; }  // max. tokens of a sequence
  void check(KernelId kernel) const;
};

// Operators that PagedAppend fuses for a few tokens, as in decoding with latent attention. Each row has a
// latent of `norm.elements()` columns, and then the part of the key that all heads share:
//
//   appended row = [RmsNormForward(latent), Rope(shared part)]
//
// The result has the same bits as that of the separate operators.
struct AroundAppend {
  Tensor norm = {};  // weights of the norm, rows' type; absent: nothing is fused
  float eps = 0;
  // As in Rope, for one head that is rotated completely: `positions` is [T] int32, `table` is [max_positions,
  // columns of the shared part] fp32. Absent: the shared part is not rotated.
  Tensor positions = {}, table = {};
  bool interleaved = false;

  bool absent() const { return norm.absent(); }
};

// Writes the new tokens' rows into the pages. Rows that belong to no sequence are not read.
struct PagedAppend {
  static constexpr KernelId kId = KernelId::kPagedAppend;
  PagedSequences sequences;
  Tensor rows;   // first element; `cols` columns of T rows
  Tensor pages;  // first element of the destination columns in [pages * page_size, ...], rows' type
  std::int64_t tokens, cols;       // T
  std::int64_t stride, to_stride;  // elements between the starts of consecutive rows
  // Further columns of the same rows, which are copied to other pages: if `rows` are keys, these are the
  // values. Absent: there are no further columns.
  Tensor more_rows = {}, more_pages = {};
  std::int64_t more_cols = 0, more_to_stride = 0;
  AroundAppend around = {};  // if given, there are no further columns
  // The workspace size that a device reports if it does not support the call's `around`.
  static constexpr std::int64_t kNotTaken = -1;
  Tensor workspace = {};
  void check() const;
  double flops() const { return 0; }
};

// Returns whether the device has a kernel for this call including `around`. Only types, shapes and addresses
// of rows and pages matter.
bool is_taken(Device& device, const PagedAppend& call);

struct PagedAttention {
  static constexpr KernelId kId = KernelId::kPagedAttention;
  PagedSequences sequences;
  std::int64_t tokens;  // T
  std::int64_t heads, kv_heads, head_dim, value_dim;
  float scale;
  std::int64_t window, chunk;  // 0: no limit
  float score_cap = 0;         // as in AttentionShape
  Tensor q;                    // first element of [T, heads*head_dim]
  Tensor k, v;                 // first elements of [pages * page_size, kv_heads*dim], with the new rows
  std::int64_t q_stride, k_stride, v_stride;
  Tensor sinks;  // [heads] in q's type; absent: there are none
  Tensor out;    // [T, heads*value_dim], contiguous; zero for rows that belong to no sequence
  Tensor workspace;
  void check() const;
  double flops() const { return 0; }  // unknown: the lengths are only on the device
};

}  // namespace primus::turbo
