// Detects weights whose MXFP4 value jumps while the weight itself hardly moves, and stops this oscillation.
// Over a window of steps it sums the distances that each weight moves and the distances that its rounded
// value jumps. If the second sum is many times the first, the weight is set to the rounded value. This is the
// detector of AMD Primus's weight_deosc. Oscillation in low-precision training: Nagel et al. 2022,
// arXiv:2203.11086.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// For each of n weights, with w before and w' after a step, and the rounded values q and q':
//   moved += |w' - w|,  jumped += |q' - q|
// With `ends`, at the end of a window: w' = q' if moved > 0 and jumped >= ratio * moved, and both sums
// restart at 0. If grad_scale is negative, the step was skipped: no tensor changes, and the window continues.
struct TrackOscillation {
  static constexpr KernelId kId = KernelId::kTrackOscillation;
  // Masters and their bf16 values before and after the step (turbo/master_weights.h). The values after the
  // step are updated in place.
  Tensor before_param = {};      // [n] fp32; absent if the masters are split
  Tensor before_working;         // [n] bf16
  Tensor before_remainder = {};  // [n] int16, for split masters
  Tensor param = {};
  Tensor working;
  Tensor remainder = {};
  Tensor before_rounded, rounded;  // [n] bf16: q and q'
  Tensor moved, jumped;            // [n] fp32, updated in place
  Tensor grad_scale;               // [1] fp32
  Tensor snapped = {};  // [1] int32: incremented by the number of weights set to q'; absent: not counted
  float ratio;
  bool ends = false;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
