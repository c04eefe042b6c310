// The gated delta rule of linear attention (Yang et al. 2024, arXiv:2412.06464; with a gate per key channel:
// Kimi Delta Attention, arXiv:2510.26692). Each value head of a sequence has a state S [key_dim, value_dim],
// initially zero. Each token decays S, corrects the value that S holds for the token's key, and reads S:
//   S[t] = diag(exp(g[t])) S[t-1] + k[t] u[t]ᵀ,   u[t] = beta[t] (v[t] - (diag(exp(g[t])) S[t-1])ᵀ k[t]),
//   o[t] = scale S[t]ᵀ q[t].
// Key head i serves the value heads i r to i r + r - 1, r = value_heads / key_heads. With `normalise`, q and
// k are first divided by sqrt(|q|² + epsilon), as use_qk_l2norm_in_kernel does in transformers.
//
// The rows of the operand are outputs of a projection, or of the convolution after it. A row has the queries,
// keys and values of all heads in adjacent columns. Gates and beta are separate tensors. States and sums are
// in fp32; results are rounded once.
//
// The state is reset at the start of each document: at a token whose first_key (turbo/attention/attention.h)
// is its own position.
//
// Kernels process chunks of tokens. Within a chunk the u solve a unit triangular system, the WY form of
// products of Householder-like matrices (Yang et al. 2024, arXiv:2406.06484):
//   (I + A) U = beta (V - (K exp(G)) S),
//   A[i][j] = beta[i] sum over c of k[i][c] k[j][c] exp(G[i][c] - G[j][c])
// for j < i, where G sums the gates from the start of the chunk. Only differences <= 0 are exponents, so
// strong gates cannot overflow. The backward pass recomputes the states of all chunks; the forward pass keeps
// only its inputs.
#pragma once

#include "tensor/tensor.h"
#include "turbo/attention/paged_attention.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct DeltaRuleShape {
  // Tokens per chunk in the FLOP count; kernels may use other chunks.
  static constexpr std::int64_t kChunk = 64;
  static constexpr std::int64_t kMaxDim = 256;  // limit of key_dim and value_dim

  std::int64_t batch, sequence;                             // number of sequences, and tokens per sequence
  std::int64_t key_heads, value_heads, key_dim, value_dim;  // value_heads: a multiple of key_heads
  bool channel_gates;  // one gate per key channel instead of one per value head
  bool normalise;
  float scale;
  float epsilon = 1e-6F;

  std::int64_t rows() const { return batch * sequence; }
  // Return the first column of keys and of values in a row, and the width of a row.
  std::int64_t k_column() const { return key_heads * key_dim; }
  std::int64_t v_column() const { return 2 * k_column(); }
  std::int64_t width() const { return v_column() + out_width(); }
  std::int64_t out_width() const { return value_heads * value_dim; }
  std::int64_t gates() const { return value_heads * (channel_gates ? key_dim : 1); }
  // Returns the number of elements per token and value head in `recent` (CachedDeltaRule).
  std::int64_t recent_width() const { return 1 + (channel_gates ? key_dim : 1) + key_dim + value_dim; }
  void check(KernelId kernel) const;
};

struct DeltaRuleForward {
  static constexpr KernelId kId = KernelId::kDeltaRuleForward;
  DeltaRuleShape shape;
  Tensor qkv;        // [rows, width()]: queries, keys, values
  Tensor g;          // [rows, gates()] fp32, <= 0; channel gates of a head are adjacent
  Tensor beta;       // [rows, value_heads] fp32
  Tensor first_key;  // [rows] int32: first position of the token's document; absent: 0
  Tensor out;        // output: [rows, out_width()], qkv's type
  Tensor workspace;
  void check() const;
  double flops() const;
};

struct DeltaRuleBackward {
  static constexpr KernelId kId = KernelId::kDeltaRuleBackward;
  DeltaRuleShape shape;
  Tensor qkv, g, beta, first_key;  // as in the forward pass
  Tensor d_out;                    // [rows, out_width()], qkv's type
  Tensor d_qkv;                    // output: shape and type of qkv
  Tensor d_g, d_beta;  // output: shapes of g and beta. d_g is zero at the first token of a document
  Tensor workspace;
  void check() const;
  double flops() const;
};

// Operators that CachedDeltaRule fuses around the delta rule, so that one kernel computes the layer of a
// gated delta network between its two projections:
//
//   [q, k, v, z, b, a] = columns of `wide`
//   qkv = CachedCausalConv([q, k, v]) in the form kSilu, without a bias;  g, beta = DeltaGatesForward([b, a])
//   out = GatedNormForward(delta rule of qkv, g and beta, gate z) with the activation kSilu
//
// The result has the same bits as that of the separate operators. Devices support fusion only if
// sequences.single is true, and only for some types and shapes (is_taken()). `state`, `recent`, `committed`
// and `ring` are read before the previous kernel ends. Therefore these tensors must not have changed since
// the last copy into the tensors of `sequences`.
struct AroundDeltaRule {
  Tensor wide = {};    // [T, width() + out_width() + 2 * value_heads] bf16; absent: nothing is fused
  Tensor kernel = {};  // [width(), number of tokens in the convolution] bf16
  Tensor ring = {};    // as in CachedCausalConv; read and written
  Tensor a_log = {}, dt_bias = {};  // [value_heads] fp32
  Tensor norm = {};                 // [value_dim] bf16
  float eps = 0;                    // of the norm

  bool absent() const { return wide.absent(); }
  static std::int64_t columns(const DeltaRuleShape& s) {
    return s.width() + s.out_width() + 2 * s.value_heads;
  }
};

// Processes the new tokens of many sequences, for generation. The call cannot compute an earlier state from a
// later state. Therefore each sequence has its state before position `committed`, and the inputs of all
// tokens from this position on. The inputs of token p are in row p % ring of `recent`. A pass first replays
// the tokens from `committed` on, then processes the new tokens. If more than `ring` tokens are uncommitted
// at the end of a pass, the pass commits all tokens except the last `spare` tokens. Therefore
// - a sequence may be truncated by up to `spare` tokens, counted from its maximum length since its last start
//   at position 0;
// - a pass with at most `spare` new tokens per sequence may be repeated.
// A sequence whose first new token is at position 0 starts from a zero state; the caller does not need to
// clear its state.
struct CachedDeltaRule {
  static constexpr KernelId kId = KernelId::kCachedDeltaRule;
  PagedSequences sequences;  // the pages are not used
  DeltaRuleShape shape;      // batch is 1, and sequence is T
  std::int64_t spare;        // spare < ring
  Tensor qkv, g, beta;       // as in DeltaRuleForward, for T tokens; absent if `around` is given
  Tensor state;              // [sequences, value_heads, key_dim, value_dim] fp32; read and written
  Tensor recent;             // [sequences, ring, value_heads * recent_width()] fp32; read and written
  // [sequences, value_heads] int32, equal for all heads of a sequence; read and written
  Tensor committed;
  Tensor out;  // output: [T, out_width()]; zero for rows that belong to no sequence
  AroundDeltaRule around = {};
  // The workspace size that a device reports if it does not support the call's `around`.
  static constexpr std::int64_t kNotTaken = -1;
  Tensor workspace;
  void check() const;
  double flops() const { return 0; }
};

// Returns whether the device has a kernel for this call including `around`. Only types, shapes and
// sequences.single matter.
bool is_taken(Device& device, const CachedDeltaRule& call);

}  // namespace primus::turbo
