// Weights whose numbers in MXFP4 jump while they themselves hardly move: how far each has moved since a
// window of steps began, how far its number has, and its end at that number where the second is many times
// the first. (The detector is the one of Primus's weight_deosc; oscillation in training at low precision:
// Nagel et al. 2022, arXiv:2203.11086.)
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// For each of n weights, w before and w' after a step, with the numbers q and q':
//   moved += |w' - w|,  jumped += |q' - q|
// With `ends`, where the window ends: w' = q' where moved > 0 and jumped >= ratio * moved, and both sums are
// 0 again. A negative grad_scale, the sign of a step that is skipped, changes nothing: the window goes on.
struct TrackOscillation {
  static constexpr KernelId kId = KernelId::kTrackOscillation;
  // Masters and their bf16 values before the step, and the same in place after it (turbo/master_weights.h).
  Tensor before_param = {};      // [n] fp32; absent: split
  Tensor before_working;         // [n] bf16
  Tensor before_remainder = {};  // [n] int16, of split masters
  Tensor param = {};
  Tensor working;
  Tensor remainder = {};
  Tensor before_rounded, rounded;  // [n] bf16: q and q'
  Tensor moved, jumped;            // [n] fp32, in place
  Tensor grad_scale;               // [1] fp32
  Tensor snapped = {};             // [1] int32: weights that ended at q' are added; absent: not counted
  float ratio;
  bool ends = false;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
