// Weight decomposition of adapters (DoRA; Liu et al. 2024, arXiv:2402.09353): the rows of an adapted matrix W
// + scale B A have trained magnitudes m, so a linear layer computes
//
//   y = m * u / n,  u = W x + scale B A x,  n = |W + scale B A|, the Euclidean norm of each row
//
// As in the DoRA paper, the gradient treats n as a constant. The operators exchange n^2, because ranks that
// divide the columns of W add their parts of it.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// square[o] = |w[o] + scale * sum over r of up[o, r] * down[r]|^2, in fp32.
struct DoraNorm {
  static constexpr KernelId kId = KernelId::kDoraNorm;
  Tensor w;         // [out, in] fp32 or bf16
  Tensor down, up;  // [rank, in] and [out, rank], w's type
  Tensor square;    // output: [out] fp32
  float scale = 1;
  void check() const;
  double flops() const {
    return 2.0 * static_cast<double>(w.elements()) * static_cast<double>(down.rows() + 1);
  }
};

// y[t, first + o] = x[t, first + o] * magnitude[o] / sqrt(square[o]), rounded once, for each o of
// `magnitude`. Other columns are copied. If x is the gradient of the output, y is the gradient of the input.
struct DoraScale {
  static constexpr KernelId kId = KernelId::kDoraScale;
  Tensor x;          // [tokens, cols] fp32 or bf16
  Tensor magnitude;  // [out], x's type
  Tensor square;     // [out] fp32, above 0
  Tensor y;          // output: x's type and shape; may be x
  std::int64_t first = 0;
  void check() const;
  double flops() const { return 0; }
};

// d_magnitude[o] (+)= sum over tokens of d_y[t, first + o] * x[t, first + o] / sqrt(square[o]), in an order
// that does not depend on the number of threads.
struct DoraBackwardMagnitude {
  static constexpr KernelId kId = KernelId::kDoraBackwardMagnitude;
  Tensor x, d_y;       // [tokens, cols] fp32 or bf16
  Tensor square;       // [out] fp32, above 0
  Tensor d_magnitude;  // [out] fp32 or bf16, rounded once
  std::int64_t first = 0;
  bool accumulate = false;
  Tensor workspace = {};
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
