// A soft cap on logits (Gemma 2, arXiv:2408.00118, section 2; Grok):
//   y = cap * tanh(x / cap)
// Values far below the cap hardly change, and no magnitude exceeds the cap.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct SoftCap {
  static constexpr KernelId kId = KernelId::kSoftCap;
  Tensor x;   // fp32 or bf16
  Tensor y;   // output: x's type and shape; may be x
  float cap;  // > 0
  void check() const;
  double flops() const { return 0; }
};

// Computes d_x = d_y * (1 - (y / cap)^2) from the capped values y.
struct SoftCapBackward {
  static constexpr KernelId kId = KernelId::kSoftCapBackward;
  Tensor y;    // fp32 or bf16
  Tensor d_y;  // y's type and shape
  Tensor d_x;  // output: y's type and shape; may be d_y
  float cap;   // > 0
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
