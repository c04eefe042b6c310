// SiTU, the activation of Kimi K3's feed-forward layers: SwiGLU whose two linear factors are replaced by soft
// clamps,
//   out = beta · tanh(gate / beta) · sigmoid(gate) · linear_beta · tanh(up / linear_beta),
// with gate columns followed by up columns in one tensor. For small values, the result is nearly that of
// SwiGLU. No magnitude exceeds beta · linear_beta, if linear_beta is not 0.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct SituForward {
  static constexpr KernelId kId = KernelId::kSituForward;
  Tensor gate_up;     // [tokens, 2*ffn]: gate, then up
  Tensor out;         // [tokens, ffn]
  float beta;         // > 0
  float linear_beta;  // > 0, or 0: up is not clamped
  void check() const;
  double flops() const { return 0; }
};

struct SituBackward {
  static constexpr KernelId kId = KernelId::kSituBackward;
  Tensor gate_up;    // [tokens, 2*ffn]
  Tensor d_out;      // [tokens, ffn]
  Tensor d_gate_up;  // output: [tokens, 2*ffn]; may share the memory of gate_up
  float beta, linear_beta;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
