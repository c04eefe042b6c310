// RMSNorm of every query head and every key head of a fused projection, over the head_dim columns of the head
// (QK norm: Henry et al. 2020; with weights in Qwen 3, without weights in Llama 4):
//   y = x * rstd * (weight + offset),  rstd = 1/sqrt(mean(x²) + eps) per token and head.
// The offset is 1 if weights are stored minus one, else 0. A row has `heads` query heads, then `kv_heads` key
// heads, then columns that are copied unchanged (values). Statistics and products are in fp32; y is rounded
// once.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct HeadNormShape {
  std::int64_t heads, kv_heads, head_dim;
  std::int64_t normed() const { return heads + kv_heads; }
};

struct HeadNormForward {
  static constexpr KernelId kId = KernelId::kHeadNormForward;
  HeadNormShape shape;
  Tensor x;       // [tokens, width], width >= (heads + kv_heads) * head_dim
  Tensor weight;  // [2 * head_dim], x's type: query weights, then key weights; absent: no scaling
  Tensor y;       // output: [tokens, width]
  Tensor rstd;    // output: [tokens, heads + kv_heads] fp32
  float eps;
  float offset = 0;
  void check() const;
  double flops() const { return 0; }
};

struct HeadNormBackwardInput {
  static constexpr KernelId kId = KernelId::kHeadNormBackwardInput;
  HeadNormShape shape;
  Tensor x;       // [tokens, width]
  Tensor weight;  // [2 * head_dim], or absent
  Tensor rstd;    // [tokens, heads + kv_heads] fp32
  Tensor d_y;     // [tokens, width]
  Tensor d_x;     // output: [tokens, width]; may be d_y
  float offset = 0;
  void check() const;
  double flops() const { return 0; }
};

// d_weight (+)= sum over tokens and heads of d_y * x * rstd. The summation order does not depend on the
// number of threads.
struct HeadNormBackwardWeight {
  static constexpr KernelId kId = KernelId::kHeadNormBackwardWeight;
  HeadNormShape shape;
  Tensor x;         // [tokens, width]
  Tensor rstd;      // [tokens, heads + kv_heads] fp32
  Tensor d_y;       // [tokens, width]
  Tensor d_weight;  // [2 * head_dim] fp32, or bf16 with one rounding
  bool accumulate;
  Tensor workspace;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
