// The optimizer step on flat buffers, the gradient norm, and clipping.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// AdamW with decoupled weight decay (Loshchilov & Hutter 2019), in the order of torch.optim.AdamW:
//   p *= 1 - lr*weight_decay;  m = b1*m + (1-b1)*g;  v = b2*v + (1-b2)*g²;
//   p -= lr/bias1 * m / (sqrt(v)/sqrt(bias2) + eps),   bias_i = 1 - b_i^step,   g = grad * grad_scale[0].
// Learning rate, weight decay and biases are step scalars (turbo/step_scalars.h); learning_rate_factor and
// weight_decay_factor of this parameter group multiply the learning rate and the weight decay. If grad_scale
// is negative, the step is skipped and no tensor changes.
//
// bf16 and 8-bit moments are rounded stochastically when they are stored (turbo/stochastic_rounding.h); the
// update uses the values before rounding. With an 8-bit moment, n is a multiple of kMomentBlock
// (turbo/block_moments.h) and all addresses are multiples of 16.
struct AdamW {
  static constexpr KernelId kId = KernelId::kAdamW;
  Tensor param;           // [n] fp32 master weights, updated in place; absent if the masters are split
  Tensor grad;            // [n] fp32 or bf16
  Tensor exp_avg;         // [n] fp32, bf16, or fp8 e4m3, updated in place
  Tensor exp_avg_sq;      // [n] fp32, bf16, or uint8 (ue5m3), updated in place
  Tensor grad_scale;      // [1] fp32 on the device: ClipCoefficient::scale
  Tensor working;         // [n] bf16 working values, updated in place, or absent (turbo/master_weights.h)
  Tensor remainder = {};  // [n] int16 remainders of split masters, updated in place; absent if not split
  Tensor exp_avg_scale = {}, exp_avg_sq_scale = {};  // [n / kMomentBlock] bf16, for 8-bit moments
  Tensor scalars;                                    // [kStepScalars] fp64
  float beta1, beta2, eps;
  float learning_rate_factor = 1, weight_decay_factor = 1;
  // For stochastic rounding of moments: the parameter's random stream, and the index of param[0] in this
  // stream.
  std::uint64_t rounding_stream = 0;
  std::int64_t first_element = 0;
  void check() const;
  double flops() const { return 0; }
};

// out[0] (+)= sum of x², in a fixed order with double partial sums.
struct SumOfSquares {
  static constexpr KernelId kId = KernelId::kSumOfSquares;
  Tensor x;    // [n] fp32 or bf16
  Tensor out;  // [1] fp64
  bool accumulate;
  void check() const;
  double flops() const { return 0; }
};

// norm[0] = sqrt(sum_of_squares[0]). scale[0] = min(1, max_norm / (norm + 1e-6)), or 1 if max_norm is 0. If
// the norm is not finite, scale[0] = -1, and the step is skipped.
struct ClipCoefficient {
  static constexpr KernelId kId = KernelId::kClipCoefficient;
  Tensor sum_of_squares;  // [1] fp64
  Tensor norm;            // output: [1] fp32
  Tensor scale;           // output: [1] fp32
  float max_norm;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
