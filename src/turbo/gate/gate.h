// Output gates: a layer's output is multiplied by an activation of a gate. The gate is a projection of the
// layer's input. Gated attention, shared experts and linear attention use output gates. Linear attention
// normalises each head before the gate. Intermediate values are in fp32; results are rounded once.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// y = x * sigmoid(gate), with one gate per column or one per row.
struct GateForward {
  static constexpr KernelId kId = KernelId::kGateForward;
  Tensor x;     // [rows, n]
  Tensor gate;  // [rows, n] x's type, or [rows, 1] x's type or fp32
  Tensor y;     // output: [rows, n]; may be x
  void check() const;
  double flops() const { return 0; }
};

struct GateBackward {
  static constexpr KernelId kId = KernelId::kGateBackward;
  Tensor x, gate;  // as in the forward pass
  Tensor d_y;      // [rows, n]
  Tensor d_x;      // output: [rows, n]; may be d_y
  Tensor d_gate;   // output: shape and type of gate
  void check() const;
  double flops() const { return 0; }
};

// For each head of a row, `dim` consecutive columns:
//   y = x * rstd * weight * act(gate),  rstd = 1/sqrt(mean(x²) + eps).
// `act` is SiLU (gated delta networks: Yang et al. 2024) or the sigmoid (Kimi delta attention).
enum class GateActivation : std::uint8_t { kSilu, kSigmoid };

struct GatedNormForward {
  static constexpr KernelId kId = KernelId::kGatedNormForward;
  GateActivation activation;
  Tensor x;       // [rows, heads * dim]
  Tensor gate;    // [rows, heads * dim]
  Tensor weight;  // [dim], x's type
  Tensor y;       // output: [rows, heads * dim]
  Tensor rstd;    // output: [rows, heads] fp32
  float eps;
  void check() const;
  double flops() const { return 0; }
};

struct GatedNormBackwardInput {
  static constexpr KernelId kId = KernelId::kGatedNormBackwardInput;
  GateActivation activation;
  Tensor x, gate, weight;  // as in the forward pass
  Tensor rstd;             // [rows, heads] fp32
  Tensor d_y;              // [rows, heads * dim]
  Tensor d_x, d_gate;      // output: [rows, heads * dim]; must not share memory with an input
  void check() const;
  double flops() const { return 0; }
};

// d_weight (+)= the sum over rows and heads of d_y * act(gate) * x * rstd, in an order that does not depend
// on the number of threads.
struct GatedNormBackwardWeight {
  static constexpr KernelId kId = KernelId::kGatedNormBackwardWeight;
  GateActivation activation;
  Tensor x, gate;   // as in the forward pass
  Tensor rstd;      // [rows, heads] fp32
  Tensor d_y;       // [rows, heads * dim]
  Tensor d_weight;  // [dim] fp32, or bf16 rounded once
  bool accumulate;
  Tensor workspace;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
