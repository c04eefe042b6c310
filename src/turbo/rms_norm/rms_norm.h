// RMSNorm (Zhang & Sennrich 2019), optionally fused with the residual addition before it:
//   sum = x + delta (rounded to its type),  rstd = 1/sqrt(mean(sum²) + eps),
//   y = sum * rstd * (weight + offset).
// The offset is 1 if weights are stored minus one (Gemma, Qwen3-Next), else 0. Statistics and products are in
// fp32; y is rounded once.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct RmsNormForward {
  static constexpr KernelId kId = KernelId::kRmsNormForward;
  Tensor x;       // [tokens, hidden]
  Tensor delta;   // [tokens, hidden], or absent
  Tensor weight;  // [hidden], x's type
  Tensor sum;     // output: [tokens, hidden]; absent if delta is absent
  Tensor y;       // output: [tokens, hidden]
  Tensor rstd;    // output: [tokens] fp32
  float eps;
  float offset = 0;
  void check() const;
  double flops() const { return 0; }
};

// d_x = d_sum + the gradient through the norm, where d_sum is the gradient of the residual stream (absent:
// zero). d_x may be the same memory as d_sum or d_y. With d_weight, the call also computes the gradient of
// the weight, like RmsNormBackwardWeight. The order of additions differs from RmsNormBackwardWeight.
struct RmsNormBackwardInput {
  static constexpr KernelId kId = KernelId::kRmsNormBackwardInput;
  Tensor x;                 // [tokens, hidden]: input of the norm, which is `sum` of the forward pass
  Tensor weight;            // [hidden]
  Tensor rstd;              // [tokens] fp32
  Tensor d_y;               // [tokens, hidden]
  Tensor d_sum;             // [tokens, hidden], or absent
  Tensor d_x;               // output: [tokens, hidden]
  Tensor d_weight = {};     // [hidden] fp32, or bf16 with one rounding; or absent
  bool accumulate = false;  // d_weight += instead of d_weight =
  float offset = 0;
  Tensor workspace = {};
  void check() const;
  double flops() const { return 0; }
};

// d_weight[h] (+)= sum over tokens of d_y * x * rstd. The summation order does not depend on the number of
// threads.
struct RmsNormBackwardWeight {
  static constexpr KernelId kId = KernelId::kRmsNormBackwardWeight;
  Tensor x;         // [tokens, hidden]
  Tensor rstd;      // [tokens] fp32
  Tensor d_y;       // [tokens, hidden]
  Tensor d_weight;  // [hidden] fp32, or bf16 with one rounding
  bool accumulate;
  Tensor workspace;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
