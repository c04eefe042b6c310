// Causal grouped-query attention, tiled with an online softmax (FlashAttention, Dao et al. 2022 and 2023):
// the complete score matrix is never stored in memory. Query head h reads key/value head h / (heads /
// kv_heads).
//
// Operands are all fp32 or all bf16; AttentionForward and AttentionBackward also accept fp16, with fp16
// gradients that are assigned, not accumulated. Operands are row-strided views: q, k and v may be column
// slices of one fused projection. A row is one token. *_stride is the number of elements from one token to
// the next.
//
// A query at position p of its sequence sees keys up to p (causal), within the last `window` positions,
// within its own chunk of `chunk` positions (Llama 4), and, if a sequence packs several documents, from
// first_key[p] on. A tile of keys that is masked for every query of a tile is skipped.
//
// A sink (GPT-OSS) is a learned logit of a query head. A sink is part of the softmax but has no value.
// Therefore the probabilities of a query's keys sum to less than one.
//
// A soft cap (Gemma 2, turbo/soft_cap) maps scaled scores x to score_cap * tanh(x / score_cap), before
// masking; sinks are not capped.
//
// A call may hold a subset of a sequence's queries and keys: positions are explicit. A query that sees none
// of the call's keys gets out = 0 and lse = -infinity. AttentionMerge joins the results of disjoint key
// ranges, in any order; AttentionBackward of each range then reads the merged out and lse. Sinks belong to
// exactly one of the ranges.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct AttentionShape {
  std::int64_t batch;       // sequences
  std::int64_t seq_q;       // query tokens per sequence
  std::int64_t seq_k;       // key tokens per sequence
  std::int64_t capacity_k;  // rows of k and v between the starts of consecutive sequences, >= seq_k
  std::int64_t heads, kv_heads;
  std::int64_t head_dim;     // columns per head of q and k
  std::int64_t value_dim;    // columns per head of v and out
  float scale;               // multiplies q·k
  bool causal;               // a query sees keys up to its own position
  std::int64_t window;       // > 0: a query sees only the last `window` keys; 0: all
  std::int64_t chunk = 0;    // > 0: a query sees only keys of its chunk, [p / chunk * chunk, ...); 0: all
  std::int64_t q_first = 0;  // position of the first query in its sequence
  std::int64_t k_first = 0;  // position of the first key; positions of keys are consecutive
  float score_cap = 0;       // > 0: the soft cap of scaled scores; 0: no soft cap
};

struct AttentionForward {
  static constexpr KernelId kId = KernelId::kAttentionForward;
  AttentionShape shape;
  Tensor q, k, v;  // each tensor holds the address of its first element; `shape` has the sizes
  std::int64_t q_stride, k_stride, v_stride;
  Tensor first_key;  // [batch*seq_q] int32: the first position in its sequence that a query may see, never
                     // smaller than for the preceding query; absent: 0. Requires a causal shape
  Tensor sinks;      // [heads] in q's type; absent: there are none
  Tensor out;        // [batch*seq_q, heads*value_dim], contiguous
  Tensor lse;        // [heads, batch*seq_q] fp32: log-sum-exp of the scaled scores and the sink; absent if no
                     // backward follows
  Tensor workspace;
  void check() const;
  // Counts only pairs of a query and a visible key. Ignores document boundaries.
  double flops() const;
};

struct AttentionBackward {
  static constexpr KernelId kId = KernelId::kAttentionBackward;
  AttentionShape shape;
  Tensor q, k, v;
  std::int64_t q_stride, k_stride, v_stride;
  Tensor first_key;  // as in the forward pass
  // out and lse of the forward pass, merged over all key ranges; lse includes the sinks.
  Tensor out, lse, d_out;
  Tensor d_q, d_k, d_v;  // same shapes and strides as q, k, v; all in q's type or all in fp32
  std::int64_t d_q_stride, d_k_stride, d_v_stride;
  bool accumulate_d_q = false;   // adds to d_q instead of assigning; exact only in fp32
  bool accumulate_d_kv = false;  // adds to d_k and d_v instead of assigning
  Tensor workspace;
  void check() const;
  double flops() const;  // 2.5 x the forward pass: five products instead of two
};

// d_sinks[h] (+)= -sum over tokens of exp(sinks[h] - lse) * (out · d_out), in token order.
struct AttentionBackwardSinks {
  static constexpr KernelId kId = KernelId::kAttentionBackwardSinks;
  std::int64_t heads, value_dim;
  Tensor sinks;            // [heads]
  Tensor out, lse, d_out;  // as above
  Tensor d_sinks;          // [heads] fp32
  bool accumulate;
  void check() const;
  double flops() const { return 0; }
};

// Joins the results of the same queries over disjoint key ranges:
//   lse' = log(exp(lse) + exp(part_lse)),  out' = out * exp(lse - lse') + part * exp(part_lse - lse').
struct AttentionMerge {
  static constexpr KernelId kId = KernelId::kAttentionMerge;
  std::int64_t heads, value_dim;
  Tensor part, part_lse;  // [tokens, heads*value_dim] fp32 or bf16, [heads, tokens] fp32
  Tensor out, lse;        // shapes as above; with bf16, every call rounds the result
  bool accumulate;        // true: joins part to out; false: copies part and part_lse to out and lse
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
