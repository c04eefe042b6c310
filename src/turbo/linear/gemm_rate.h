// The matrix-product rate of a device, measured: the ceiling that MFU and forecasts refer to.
#pragma once

#include <optional>

#include "turbo/context.h"

namespace primus::turbo {

// FLOP/s of Gemm on large shapes with operands of `dtype`: the best repetition within about `seconds`. Takes
// device memory of its own (20 to 130 MB) and gives it back.
double measure_gemm_rate(Device& device, DType dtype, double seconds);

// The same, of repetitions alone during which this process had the machine to itself: `threads` cores' worth
// of time on a device whose kernels run on the host. Empty: there was none.
std::optional<double> measure_gemm_peak(Device& device, DType dtype, int threads, double seconds);

}  // namespace primus::turbo
