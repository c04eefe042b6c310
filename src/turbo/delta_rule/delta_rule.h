// The gated delta rule of linear attention (Yang et al. 2024, arXiv:2412.06464; with a gate for each channel
// of the keys: Kimi Delta Attention, arXiv:2510.26692). Each value head of a sequence has a state S [key_dim,
// value_dim], from zero on; each token lets it fade, corrects what it says of the token's key, and reads it:
//   S[t] = diag(exp(g[t])) S[t-1] + k[t] u[t]ᵀ,   u[t] = beta[t] (v[t] - (diag(exp(g[t])) S[t-1])ᵀ k[t]),
//   o[t] = scale S[t]ᵀ q[t].
// Key head i serves the value heads i r to i r + r - 1, r = value_heads / key_heads. With `normalise`, q and
// k are divided by sqrt(|q|² + epsilon) first, as transformers' use_qk_l2norm_in_kernel does.
//
// Rows of a projection, or of the convolution behind it, are read as they are: queries, keys and values of
// all heads side by side. Gates and beta lie by themselves. States and sums are in fp32; results are rounded
// once.
//
// The state begins anew with each document: where first_key (turbo/attention/attention.h) is the token's own
// position.
//
// Kernels work on chunks of tokens at once. Within a chunk the u solve a unit triangular system, the WY form
// of products of Householder-like matrices (Yang et al. 2024, arXiv:2406.06484):
//   (I + A) U = beta (V - (K exp(G)) S),   A[i][j] = beta[i] sum over c of k[i][c] k[j][c] exp(G[i][c] -
//   G[j][c])
// for j < i, where G sums the gates from the chunk's begin on. Only differences that are <= 0 are ever
// exponentiated, so gates may be as strong as they like. The backward pass makes the states of all chunks
// again; so nothing but the inputs need be kept.
#pragma once

#include "tensor/tensor.h"
#include "turbo/attention/paged_attention.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct DeltaRuleShape {
  static constexpr std::int64_t kChunk = 64;    // tokens that FLOPs are counted for; kernels take what suits
  static constexpr std::int64_t kMaxDim = 256;  // of key_dim and value_dim

  std::int64_t batch, sequence;                             // how many sequences, and tokens of each
  std::int64_t key_heads, value_heads, key_dim, value_dim;  // value_heads: a multiple of key_heads
  bool channel_gates;  // a gate for each channel of a key, not one for each value head
  bool normalise;
  float scale;
  float epsilon = 1e-6F;

  std::int64_t rows() const { return batch * sequence; }
  // Where keys and values begin in a row, and where it ends.
  std::int64_t k_column() const { return key_heads * key_dim; }
  std::int64_t v_column() const { return 2 * k_column(); }
  std::int64_t width() const { return v_column() + out_width(); }
  std::int64_t out_width() const { return value_heads * value_dim; }
  std::int64_t gates() const { return value_heads * (channel_gates ? key_dim : 1); }
  // Of one token of one value head of a sequence's `recent` rows (CachedDeltaRule).
  std::int64_t recent_width() const { return 1 + (channel_gates ? key_dim : 1) + key_dim + value_dim; }
  void check(KernelId kernel) const;
};

struct DeltaRuleForward {
  static constexpr KernelId kId = KernelId::kDeltaRuleForward;
  DeltaRuleShape shape;
  Tensor qkv;        // [rows, width()]: queries, keys, values
  Tensor g;          // [rows, gates()] fp32, <= 0; by channel: those of a head side by side
  Tensor beta;       // [rows, value_heads] fp32
  Tensor first_key;  // [rows] int32; absent: 0
  Tensor out;        // [rows, out_width()] out, qkv's type
  Tensor workspace;
  void check() const;
  double flops() const;
};

struct DeltaRuleBackward {
  static constexpr KernelId kId = KernelId::kDeltaRuleBackward;
  DeltaRuleShape shape;
  Tensor qkv, g, beta, first_key;  // of the forward
  Tensor d_out;                    // [rows, out_width()], qkv's type
  Tensor d_qkv;                    // like qkv; out
  Tensor d_g, d_beta;              // like g and beta; out. d_g is zero where a document begins
  Tensor workspace;
  void check() const;
  double flops() const;
};

// Generation: the new tokens of many sequences. A state cannot be turned back, so what is kept of a sequence
// is the state before position `committed`, and the inputs of the tokens from there on: token p in row
// p % ring of `recent`. A pass takes the tokens in between once more, on its way to the new ones. When there
// are more than `ring` of them at its end, it commits all but the last `spare`. So
//   - a sequence may lose its last tokens, up to `spare` of all it ever had since it began anew;
//   - the same pass may run again if it has at most `spare` new tokens of each sequence.
// A sequence whose first new token is at position 0 begins anew; nothing needs clearing.
struct CachedDeltaRule {
  static constexpr KernelId kId = KernelId::kCachedDeltaRule;
  PagedSequences sequences;  // the pages are not looked at
  DeltaRuleShape shape;      // batch 1, sequence T
  std::int64_t spare;        // less than ring
  Tensor qkv, g, beta;       // of T tokens, as above
  Tensor state;              // [sequences, value_heads, key_dim, value_dim] fp32; read and written
  Tensor recent;             // [sequences, ring, value_heads * recent_width()] fp32; read and written
  Tensor committed;          // [sequences] int32; read and written
  Tensor out;                // [T, out_width()] out; zero for rows that belong to no sequence
  Tensor workspace;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
