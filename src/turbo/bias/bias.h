// The bias of a linear layer: y[t, n] = x[t, n] + bias[n]. Its gradient is the sum over tokens.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct AddBias {
  static constexpr KernelId kId = KernelId::kAddBias;
  Tensor x;     // [tokens, n] fp32 or bf16
  Tensor bias;  // [n], x's type
  Tensor y;     // output: [tokens, n], rounded once; may be x
  void check() const;
  double flops() const { return 0; }
};

// d_bias[n] (+)= sum over tokens of d_y, in an order that does not depend on the number of threads.
struct AddBiasBackwardWeight {
  static constexpr KernelId kId = KernelId::kAddBiasBackwardWeight;
  Tensor d_y;     // [tokens, n]
  Tensor d_bias;  // [n] fp32 or bf16, rounded once
  bool accumulate;
  Tensor workspace;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
