// How fast memory is: that of a device, as its own kernels read and write it, and between host and device.
// Buffers of consecutive calls are others, more than caches hold together. One thread (of the host).
#pragma once

#include <cstdint>
#include <vector>

#include "bench/device_timer.h"
#include "bench/report.h"
#include "device/device.h"

namespace primus {

struct MemoryBenchmarkOptions {
  std::vector<std::int64_t> sizes;  // bytes of a buffer; rounded up to 4
  double seconds = 0.5;             // for each measurement
  std::int64_t rotated_bytes = DeviceTimer::kRotatedBytes;
  DeviceTimer::Progress progress = {};
};

// Bytes count what is read and written. On a device that shares the host's memory, the copies between host
// and device are copies within it.
BenchmarkReport benchmark_memory(Device& device, const MemoryBenchmarkOptions& options);

}  // namespace primus
