// Kernels of Muon (Jordan et al. 2024; Liu et al. 2025, arXiv:2502.16982) that run before and after its
// matrix products. The update is the momentum matrix with all singular values replaced by about 1. A
// Newton-Schulz iteration computes this matrix: X = momentum / |momentum|, then several times X = (a + b*XX'
// + c*(XX')^2) X. The products are Gemm (turbo/linear); lm/optimizer/muon.cpp calls these kernels and the
// products.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// m = beta*m + (1-beta)*g with g = grad * grad_scale[0]; direction = m, or with nesterov beta*m + (1-beta)*g
// for the new m. If grad_scale is negative, the step is skipped: m is unchanged, and the direction is 0.
struct MuonMomentum {
  static constexpr KernelId kId = KernelId::kMuonMomentum;
  Tensor grad;        // [n] fp32 or bf16
  Tensor momentum;    // [n] fp32, updated in place
  Tensor direction;   // output: [n] fp32
  Tensor grad_scale;  // [1] fp32 on the device: ClipCoefficient::scale
  float beta;
  bool nesterov;
  void check() const;
  double flops() const { return 0; }
};

// out = x / max(sqrt(sum_of_squares[0]), 1e-7).
struct MuonNormalize {
  static constexpr KernelId kId = KernelId::kMuonNormalize;
  Tensor x;               // [n] fp32
  Tensor sum_of_squares;  // [1] fp64
  Tensor out;             // [n] fp32 or bf16
  void check() const;
  double flops() const { return 0; }
};

// out = a*I + b*gram + c*square.
struct MuonPolynomial {
  static constexpr KernelId kId = KernelId::kMuonPolynomial;
  Tensor gram;    // [k, k] fp32
  Tensor square;  // [k, k] fp32: gram * gram
  Tensor out;     // [k, k] fp32 or bf16
  float a, b, c;
  void check() const;
  double flops() const { return 0; }
};

// p = p*(1 - lr*weight_decay) - lr*scale*direction. Learning rate and weight decay are step scalars
// (turbo/step_scalars.h). If grad_scale is negative, the step is skipped and no tensor changes.
struct MuonUpdate {
  static constexpr KernelId kId = KernelId::kMuonUpdate;
  Tensor param;       // [n] fp32 master weights, updated in place; absent if the masters are split
  Tensor direction;   // [n] fp32 or bf16
  Tensor grad_scale;  // [1] fp32 on the device: ClipCoefficient::scale
  Tensor working;     // [n] bf16 values of the masters, updated in place, or absent (turbo/master_weights.h)
  Tensor remainder = {};  // [n] int16 remainders of split masters, updated in place; absent if not split
  Tensor scalars;         // [kStepScalars] fp64
  float scale;
  float weight_decay_factor = 1;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
