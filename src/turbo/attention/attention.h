// Causal grouped-query attention, tiled with an online softmax (FlashAttention, Dao et al. 2022 and 2023):
// the score matrix never exists as a whole. Query head h reads key/value head h / (heads / kv_heads).
//
// Operands are row-strided views so that q, k and v may be column slices of one fused projection: a row is
// one token, and *_stride counts elements from one token to the next.
//
// What a query at position p of its sequence sees: keys up to p (causal), of the last `window` positions, of
// its own chunk of `chunk` positions (Llama 4), and, where a sequence is packed from several documents, from
// first_key[p] on. Tiles of keys that no query of a tile sees cost nothing.
//
// Sinks (GPT-OSS) are one learned logit per query head that takes part in the softmax and has no value:
// probabilities of a query then sum to less than one.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct AttentionShape {
  std::int64_t batch;  // sequences
  std::int64_t seq_q;  // query tokens per sequence
  std::int64_t seq_k;  // key tokens per sequence that may be attended to, >= seq_q; the last seq_q of them
                       // are the queries' own positions (a KV cache has seq_k > seq_q)
  std::int64_t capacity_k;  // rows from one sequence to the next in k and v, >= seq_k
  std::int64_t heads, kv_heads;
  std::int64_t head_dim;   // of q and k
  std::int64_t value_dim;  // of v and out
  float scale;             // multiplies q·k
  bool causal;             // a query sees keys up to its own position
  std::int64_t window;     // > 0: and only the last `window` of them; 0: all
  std::int64_t chunk = 0;  // > 0: and only keys of its own chunk, [p / chunk * chunk, ...); 0: all
};

struct AttentionForward {
  static constexpr KernelId kId = KernelId::kAttentionForward;
  AttentionShape shape;
  Tensor q, k, v;  // first element of each; shape gives the rest
  std::int64_t q_stride, k_stride, v_stride;
  Tensor first_key;  // [batch*seq_q] int32, the first position of its own sequence that a query may see,
                     // non-decreasing along a sequence; absent: 0. Causal shapes with seq_k == seq_q only
  Tensor sinks;      // [heads] in q's type; absent: none
  Tensor out;        // [batch*seq_q, heads*value_dim], contiguous
  Tensor lse;  // [heads, batch*seq_q] fp32: log-sum-exp of the scaled scores, and the sink; absent when no
               // backward follows
  Tensor workspace;
  void check() const;
  double flops() const;  // visible pairs only, except that documents are not known here
};

struct AttentionBackward {
  static constexpr KernelId kId = KernelId::kAttentionBackward;
  AttentionShape shape;  // seq_k == seq_q == capacity_k
  Tensor q, k, v;
  std::int64_t q_stride, k_stride, v_stride;
  Tensor first_key;        // as in the forward; what sinks did is in lse
  Tensor out, lse, d_out;  // as the forward wrote them; d_out like out
  Tensor d_q, d_k, d_v;    // strided like q, k, v; assigned
  std::int64_t d_q_stride, d_k_stride, d_v_stride;
  Tensor workspace;
  void check() const;
  double flops() const;  // 2.5 x the forward: five products against two
};

// d_sinks[h] (+)= -sum over tokens of exp(sinks[h] - lse) * (out · d_out), in the order of the tokens.
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

}  // namespace primus::turbo
