// Measures the matrix-product rate of a device, to which MFU and forecasts refer.
#pragma once

#include <optional>

#include "turbo/context.h"

namespace primus::turbo {

// Repetitions end after `seconds`. On a device whose kernels run on the host, repetitions may end earlier: as
// soon as the best two rates differ by at most the fraction `settled` (0.01: one percent). On GPUs,
// repetitions do not end earlier, because a GPU needs time to reach its clock.
struct RateTime {
  double seconds = 0, settled = 0;
};

// Returns the FLOP/s of Gemm on large shapes with operands of `dtype`: the best of at least two repetitions.
// Allocates 8 to 130 MB of device memory, and releases this memory at the end.
double measure_gemm_rate(Device& device, DType dtype, RateTime time);

// Like measure_gemm_rate(), with a further condition on a device whose kernels run on the host. There, a
// repetition counts only if this process used the time of `threads` cores, that is, if other processes did
// not slow this process down. Returns nothing if no repetition counts.
std::optional<double> measure_gemm_peak(Device& device, DType dtype, int threads, RateTime time);

}  // namespace primus::turbo
