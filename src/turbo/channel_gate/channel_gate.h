// The gates of Kimi delta attention (arXiv:2510.26692): the log decay g of the state per key channel, and the
// write strength beta per head. The results are in fp32, as turbo/delta_rule needs.
//   g = -exp(a_log) · softplus(z + bias), or with a lower bound (Kimi K3)
//   g = lower_bound · sigmoid(exp(a_log) · (z + bias)),  beta = sigmoid(b)
// There is one a_log per head, and one bias per channel.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// The inputs of the gates.
struct ChannelGates {
  Tensor z;           // [tokens, heads * channels] fp32 or bf16
  Tensor b;           // [tokens, heads], z's type
  Tensor a_log;       // [heads] fp32
  Tensor bias;        // [heads * channels] fp32
  float lower_bound;  // < 0; 0: no lower bound
  std::int64_t heads() const { return b.cols(); }
  std::int64_t channels() const { return z.cols() / b.cols(); }
  bool fit() const;
};

struct ChannelGateForward {
  static constexpr KernelId kId = KernelId::kChannelGateForward;
  ChannelGates of;
  Tensor g;     // output: [tokens, heads * channels] fp32
  Tensor beta;  // output: [tokens, heads] fp32
  void check() const;
  double flops() const { return 0; }
};

struct ChannelGateBackward {
  static constexpr KernelId kId = KernelId::kChannelGateBackward;
  ChannelGates of;
  Tensor d_g, d_beta;  // fp32
  Tensor d_z, d_b;     // output: type of z
  void check() const;
  double flops() const { return 0; }
};

struct ChannelGateBackwardWeight {
  static constexpr KernelId kId = KernelId::kChannelGateBackwardWeight;
  ChannelGates of;
  Tensor d_g;       // fp32
  Tensor d_weight;  // output: [heads * channels + heads] fp32: gradients of the bias, then of a_log
  Tensor workspace;
  void check() const;
  double flops() const { return 0; }
};

// Initializes biases as Mamba and fla do: x = softplus⁻¹(low · (high / low)^u) with u uniform in (0, 1). On
// input, x holds normal samples, and u is computed as the normal distribution function of x.
struct ChannelGateBias {
  static constexpr KernelId kId = KernelId::kChannelGateBias;
  Tensor x;         // fp32, updated in place
  float low, high;  // 0 < low < high
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
