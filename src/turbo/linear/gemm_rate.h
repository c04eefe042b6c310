// The matrix-product rate of a device, measured: the ceiling that MFU and forecasts refer to.
#pragma once

#include <optional>

#include "turbo/context.h"

namespace primus::turbo {

// When repetitions end: after `seconds`, or, on a device whose kernels run on the host, as soon as the best
// two agree within `settled` (0.01: one percent; 0: they never do). GPUs take a while to reach their clock.
struct RateTime {
  double seconds = 0, settled = 0;
};

// FLOP/s of Gemm on large shapes with operands of `dtype`: the best repetition, of two at least. Takes device
// memory of its own (8 to 130 MB) and gives it back.
double measure_gemm_rate(Device& device, DType dtype, RateTime time);

// The same, of repetitions alone during which this process had the machine to itself: `threads` cores' worth
// of time on a device whose kernels run on the host. Empty: there was none.
std::optional<double> measure_gemm_peak(Device& device, DType dtype, int threads, RateTime time);

}  // namespace primus::turbo
