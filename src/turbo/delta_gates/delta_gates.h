// The gates of a gated delta network (Yang et al. 2024, arXiv:2412.06464), per token and head: the log decay
// g of the state, as in Mamba2, and the write strength beta.
//   g = -exp(a_log) * softplus(a + dt_bias),   beta = sigmoid(b)
// g and beta are in fp32, as turbo/delta_rule needs.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct DeltaGatesForward {
  static constexpr KernelId kId = KernelId::kDeltaGatesForward;
  Tensor ba;              // [rows, 2 * heads]: b of all heads, then a
  Tensor a_log, dt_bias;  // [heads] fp32
  Tensor g, beta;         // output: [rows, heads] fp32
  void check() const;
  double flops() const { return 0; }
};

struct DeltaGatesBackwardInput {
  static constexpr KernelId kId = KernelId::kDeltaGatesBackwardInput;
  Tensor ba, a_log, dt_bias;  // as in the forward pass
  Tensor d_g, d_beta;         // [rows, heads] fp32
  Tensor d_ba;                // output: [rows, 2 * heads]; may be ba
  void check() const;
  double flops() const { return 0; }
};

// Sums gradients of a_log and dt_bias over rows, in an order that is independent of the number of threads.
struct DeltaGatesBackwardWeight {
  static constexpr KernelId kId = KernelId::kDeltaGatesBackwardWeight;
  Tensor ba, a_log, dt_bias;  // as in the forward pass
  Tensor d_g;                 // [rows, heads] fp32
  Tensor d_weights;           // output: [2 * heads] fp32: gradients of a_log, then of dt_bias
  Tensor workspace;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
