// Stochastic gradient descent on flat fp32 buffers.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// SGD with momentum, computed in the order of torch.optim.SGD. Weight decay is added to the gradient, and is
// therefore part of the momentum.
//   g = grad * grad_scale[0] + weight_decay*p;  m = momentum*m + g;  p -= lr * m
// Learning rate and weight decay are step scalars (turbo/step_scalars.h). If grad_scale is negative, the step
// is skipped and no tensor changes.
struct SgdMomentum {
  static constexpr KernelId kId = KernelId::kSgdMomentum;
  Tensor param;            // [n] fp32 master weights, updated in place; absent if the masters are split
  Tensor grad;             // [n] fp32 or bf16
  Tensor momentum_buffer;  // [n] fp32, updated in place; absent: momentum is 0
  Tensor grad_scale;       // [1] fp32 on the device: ClipCoefficient::scale
  Tensor working;  // [n] bf16 values of the masters, updated in place, or absent (turbo/master_weights.h)
  Tensor remainder = {};  // [n] int16 remainders of split masters, updated in place; absent if not split
  Tensor scalars;         // [kStepScalars] fp64
  float momentum;
  float weight_decay_factor = 1;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
