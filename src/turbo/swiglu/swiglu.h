// SwiGLU (Shazeer 2020): out = silu(gate) * up, with gate columns followed by up columns in one tensor. GEGLU
// (Gemma) has tanh-GELU instead of SiLU: gelu(g) = g / 2 * (1 + tanh(sqrt(2 / pi) * (g + 0.044715 * g^3))).
#pragma once

#include <cstdint>

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// Activation of the gate.
enum class GluGate : std::uint8_t { kSilu, kGeluTanh };

struct SwigluForward {
  static constexpr KernelId kId = KernelId::kSwigluForward;
  Tensor gate_up;  // [tokens, 2*ffn]: gate, then up
  Tensor out;      // [tokens, ffn]
  GluGate gate = GluGate::kSilu;
  void check() const;
  double flops() const { return 0; }
};

struct SwigluBackward {
  static constexpr KernelId kId = KernelId::kSwigluBackward;
  Tensor gate_up;    // [tokens, 2*ffn]
  Tensor d_out;      // [tokens, ffn]
  Tensor d_gate_up;  // output: [tokens, 2*ffn]; may be gate_up's memory
  GluGate gate = GluGate::kSilu;
  void check() const;
  double flops() const { return 0; }
};

// Computes SwiGLU of the rows of experts, weighted by the weight w of a row's slot: out[r, :] = w ·
// swiglu(gate_up[r, :]), or swiglu(w · gate_up[r, :]) with weigh_input. The results of the experts' last
// products are then added without weights. Rows without an expert may have any contents in the input, and are
// not written.
struct WeightedSwigluForward {
  static constexpr KernelId kId = KernelId::kWeightedSwigluForward;
  Tensor gate_up;         // [rows, 2*ffn]: gate, then up
  Tensor weights;         // [tokens, top_k] fp32
  Tensor offsets, slots;  // from the RoutingPlan
  bool weigh_input;
  Tensor out;  // [rows, ffn]
  void check() const;
  double flops() const { return 0; }
};

struct WeightedSwigluBackward {
  static constexpr KernelId kId = KernelId::kWeightedSwigluBackward;
  Tensor gate_up;         // [rows, 2*ffn]
  Tensor weights;         // [tokens, top_k] fp32
  Tensor offsets, slots;  // from the RoutingPlan
  bool weigh_input;
  Tensor d_out;             // [rows, ffn]
  Tensor d_gate_up;         // output: [rows, 2*ffn]; may be gate_up's memory
  Tensor previous_weights;  // [tokens, top_k] fp32, or absent: zero; may be d_weights
  Tensor d_weights;         // output: [tokens, top_k] fp32: previous_weights plus the gradients of the slots'
                            // weights; absent: not computed
  void check() const;
  double flops() const { return 0; }
};

// SwiGLU with clamped arguments: out = (u + shift) * g * sigmoid(alpha g) with g = min(gate, limit) and u =
// up clamped to [-limit, limit]. The gradient is zero where a value is clamped. gpt-oss uses alpha = 1.702
// and shift = 1; DeepSeek-V4 uses alpha = 1 and shift = 0.
struct ClampedSwigluForward {
  static constexpr KernelId kId = KernelId::kClampedSwigluForward;
  Tensor gate_up;  // [tokens, 2*ffn]: gate, then up
  Tensor out;      // [tokens, ffn]
  float limit;
  float alpha = 1.702F, shift = 1;
  void check() const;
  double flops() const { return 0; }
};

struct ClampedSwigluBackward {
  static constexpr KernelId kId = KernelId::kClampedSwigluBackward;
  Tensor gate_up;    // [tokens, 2*ffn]
  Tensor d_out;      // [tokens, ffn]
  Tensor d_gate_up;  // output: [tokens, 2*ffn]; may be gate_up's memory
  float limit;
  float alpha = 1.702F, shift = 1;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
