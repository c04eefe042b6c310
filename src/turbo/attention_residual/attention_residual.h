// Attention residuals (Kimi K3). Each branch of a block reads a learned mixture of the residual stream and
// its checkpoints. Checkpoints are earlier states of the stream. For each token, with n + 1 candidates v_j,
//   score_j = (w · v_j) / sqrt(mean(v_j²) + eps),  w = norm · proj,  out = Σ_j softmax(score)_j v_j:
// normalised candidates are used only for the scores. All sums are in fp32; out is rounded once.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// The candidates of T tokens: n checkpoints in adjacent columns, and the stream.
struct ResidualCandidates {
  static constexpr std::int64_t kMax = 64;  // checkpoints and stream together
  Tensor checkpoints;                       // [T, n * hidden], n >= 1
  Tensor stream;                            // [T, hidden], the same type
  Tensor norm, proj;                        // [hidden] fp32
  float eps;
  std::int64_t count() const { return checkpoints.cols() / stream.cols() + 1; }
  bool fit() const;
};

struct AttentionResidual {
  static constexpr KernelId kId = KernelId::kAttentionResidual;
  ResidualCandidates of;
  Tensor out;  // [T, hidden]
  void check() const;
  double flops() const { return 0; }
};

struct AttentionResidualBackward {
  static constexpr KernelId kId = KernelId::kAttentionResidualBackward;
  ResidualCandidates of;
  Tensor d_out;  // [T, hidden]
  // Gradients of the candidates from other readers of the candidates; absent: zero. Each tensor may share the
  // memory of the corresponding output.
  Tensor previous_checkpoints, previous_stream;
  Tensor d_checkpoints, d_stream;  // output: shapes of `checkpoints` and `stream`
  Tensor factors;  // output: [T, n + 1] fp32: the gradient of w is Σ factor · v over tokens and candidates
  void check() const;
  double flops() const { return 0; }
};

// d_norm = proj · d_w and d_proj = norm · d_w, in an order that does not depend on the number of threads.
struct AttentionResidualBackwardWeight {
  static constexpr KernelId kId = KernelId::kAttentionResidualBackwardWeight;
  ResidualCandidates of;
  Tensor factors;         // [T, n + 1] fp32
  Tensor d_norm, d_proj;  // output: [hidden] fp32
  Tensor workspace;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
