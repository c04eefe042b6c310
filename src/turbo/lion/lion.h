// The Lion optimizer on flat fp32 buffers.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms") with decoupled weight decay:
//   u = sign(b1*m + (1-b1)*g);  m = b2*m + (1-b2)*g;  p = p*(1 - lr*weight_decay) - lr*u
// with g = grad * grad_scale[0], and sign(0) = 0. Learning rate and weight decay are step scalars
// (turbo/step_scalars.h). If grad_scale is negative, the step is skipped and no tensor changes.
struct Lion {
  static constexpr KernelId kId = KernelId::kLion;
  Tensor param;       // [n] fp32 master weights, updated in place; absent if the masters are split
  Tensor grad;        // [n] fp32 or bf16
  Tensor exp_avg;     // [n] fp32, updated in place
  Tensor grad_scale;  // [1] fp32 on the device: ClipCoefficient::scale
  Tensor working;     // [n] bf16 values of the masters, updated in place, or absent (turbo/master_weights.h)
  Tensor remainder = {};  // [n] int16 remainders of split masters, updated in place; absent if not split
  Tensor scalars;         // [kStepScalars] fp64
  float beta1, beta2;
  float weight_decay_factor = 1;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
