// A GPU as a device: one source for CUDA and HIP, compiled into the plug-in of each (plugin.cu).
#pragma once

#include <memory>
#include <string>

#include "device/device.h"
#include "device/gpu/target.h"

namespace primus::gpu::PRIMUS_GPU {

// How many GPUs the driver shows; throws Error(kDependency) when there is no driver.
int device_count();

// Opens GPU number `index`. The table must outlive the device. Throws Error(kInvalid) when there is no such
// GPU, and Error(kDependency) without a driver.
std::unique_ptr<Device> open_gpu(int index, const KernelTable& kernels);

}  // namespace primus::gpu::PRIMUS_GPU
