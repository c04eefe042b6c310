// The state of one GPU, read without starting a program: NVIDIA GPUs through the driver's library (NVML), AMD
// GPUs from files of the amdgpu driver. Values that the driver does not report are nullopt.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "safe/preflight/machine.h"

namespace primus::watch {

struct GpuReading {
  std::string name;                                                  // "gpu 3"
  std::optional<std::int64_t> uncorrected_errors, corrected_errors;  // ECC errors since the driver was loaded
  std::vector<std::string> throttled_by;                             // "thermal slowdown by hardware"
  std::optional<double> temperature;                                 // Celsius
  std::optional<double> clock, largest_clock;                        // MHz, of the compute units
  std::optional<std::int64_t> link_width, largest_link_width;        // PCI Express lanes
  std::vector<std::int64_t> xids;                                    // Xid errors since the last reading
};

// One owner; not thread-safe.
class GpuSource {
 public:
  virtual ~GpuSource() = default;
  virtual GpuReading read() = 0;
};

// Opens the GPU at the address `bus` of the PCI bus ("0000:1B:00.0"). The driver and the runtime library may
// number the GPUs of a machine differently, but both know this address. If `bus` is empty or the driver does
// not know it, opens the GPU that a program sees as number `device` of its kind ("cuda", "hip"); the
// variables that select GPUs (CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES) then apply, as
// numbers or UUIDs. `nvml`: the file of NVML. Returns null if there is no such GPU, or if the driver's
// library is missing.
inline constexpr const char* kNvml = "libnvidia-ml.so.1";
std::unique_ptr<GpuSource> open_gpu(const std::shared_ptr<const preflight::Machine>& machine,
                                    const std::string& kind, int device, const std::string& bus = {},
                                    const std::string& nvml = kNvml);

namespace internal {
// `selected`: number or UUID of the GPU, if `bus` does not find it.
std::unique_ptr<GpuSource> open_nvidia(const std::string& selected, const std::string& bus,
                                       const std::string& nvml);
// `selected`: number or unique id ("GPU-<id>") of the GPU, if `bus` does not find it.
std::unique_ptr<GpuSource> open_amd(const std::shared_ptr<const preflight::Machine>& machine,
                                    const std::string& selected, const std::string& bus);
}  // namespace internal

}  // namespace primus::watch
