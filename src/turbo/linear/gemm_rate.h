// Measures the matrix-product rate of a device: the ceiling that MFU and forecasts refer to.
#pragma once

#include <optional>

#include "turbo/context.h"

namespace primus::turbo {

// Repetitions end after `seconds`. On a device whose kernels run on the host, they also end as soon as the
// best two agree within `settled` (0.01: one percent; 0: only if equal). GPUs need time to reach their clock.
struct RateTime {
  double seconds = 0, settled = 0;
};

// Returns the FLOP/s of Gemm on large shapes with operands of `dtype`: the best of at least two repetitions.
// Allocates 8 to 130 MB of device memory and releases them.
double measure_gemm_rate(Device& device, DType dtype, RateTime time);

// Like measure_gemm_rate(), but counts only repetitions during which this process had the machine to itself:
// on a device whose kernels run on the host, it used the time of `threads` cores. Empty: there was none.
std::optional<double> measure_gemm_peak(Device& device, DType dtype, int threads, RateTime time);

}  // namespace primus::turbo
